//! Which of the things that a server sends answers which command.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::wire;
use crate::Cut;

/// What one connection has been asked and has not answered yet. Replies come in the order of the commands, with what the
/// server sends of its own accord between them. `CLIENT REPLY OFF` is not understood.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    state: Mutex<State>,
    /// How many commands the client has no answer of.
    open: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    expected: VecDeque<Expected>,
    /// Whether version 3 is spoken, in which what comes unasked is marked as such.
    version_3: bool,
    /// By the letter before SUBSCRIBE in the name of the command, or nothing.
    channels: HashSet<(Option<u8>, Vec<u8>)>,
    /// Whether there ever was a subscription.
    subscribed: bool,
}

#[derive(Debug)]
struct Expected {
    cut: Option<Cut>,
    /// A subscription is answered once for each channel.
    confirmations: Option<usize>,
}

/// What something that the server has sent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// It comes unasked.
    Push,
    /// It answers the oldest command, whole unless more follows.
    Reply { cut: Option<Cut>, whole: bool },
}

impl Conversation {
    /// A command is about to be sent.
    pub(super) fn asked(&self, name: &str, arguments: &[&[u8]], cut: Option<Cut>) {
        let mut state = self.state();
        match name {
            "HELLO" if !arguments.is_empty() => state.version_3 = arguments[0] == b"3",
            "RESET" => *state = State { expected: std::mem::take(&mut state.expected), ..State::default() },
            _ => {}
        }
        let confirmations = state.confirmations(name, arguments);
        state.expected.push_back(Expected { cut, confirmations });
        self.open.send_modify(|open| *open += 1);
    }

    /// Something has arrived from the server.
    pub(super) fn answered(&self, frame: &[u8]) -> Due {
        let mut state = self.state();
        let word = wire::first_word(frame).unwrap_or_default();
        let marked = frame[0] == b'>';
        let listed = !state.version_3 && frame[0] == b'*';
        let confirms = (marked || listed) && word.ends_with(b"subscribe");
        if let Some(Expected { cut, confirmations: Some(left) }) = state.expected.front_mut()
            && confirms
        {
            *left -= 1;
            let (cut, whole) = (*cut, *left == 0);
            if whole {
                state.expected.pop_front();
            }
            return Due::Reply { cut, whole };
        }
        let message = state.subscribed && listed && matches!(word, b"message" | b"pmessage" | b"smessage");
        if marked || message {
            return Due::Push;
        }
        // A subscription that is refused is answered once.
        state.expected.pop_front().map_or(Due::Push, |expected| Due::Reply { cut: expected.cut, whole: true })
    }

    /// The client has the whole reply to a command.
    pub(super) fn passed_on(&self) {
        self.open.send_modify(|open| *open -= 1);
    }

    /// Waits until the client has the replies to all commands.
    pub(super) async fn all_answered(&self) {
        // The sender is here, so this can't fail.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How many times a command will be answered, if it is one that begins or ends subscriptions.
    fn confirmations(&mut self, name: &str, channels: &[&[u8]]) -> Option<usize> {
        let (kind, ends) = match name {
            "SUBSCRIBE" => (None, false),
            "PSUBSCRIBE" => (Some(b'P'), false),
            "SSUBSCRIBE" => (Some(b'S'), false),
            "UNSUBSCRIBE" => (None, true),
            "PUNSUBSCRIBE" => (Some(b'P'), true),
            "SUNSUBSCRIBE" => (Some(b'S'), true),
            _ => return None,
        };
        if ends && channels.is_empty() {
            let before = self.channels.len();
            self.channels.retain(|(other, _)| *other != kind);
            return Some((before - self.channels.len()).max(1));
        }
        for channel in channels {
            let channel = (kind, channel.to_vec());
            if ends {
                self.channels.remove(&channel)
            } else {
                self.channels.insert(channel)
            };
        }
        self.subscribed |= !ends;
        Some(channels.len().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str], kind: char) -> Vec<u8> {
        let texts: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        format!("{kind}{}\r\n{texts}", words.len()).into_bytes()
    }

    const WHOLE: Due = Due::Reply { cut: None, whole: true };
    const PART: Due = Due::Reply { cut: None, whole: false };

    #[test]
    fn replies_belong_to_commands_in_their_order() {
        let conversation = Conversation::default();
        conversation.asked("GET", &[b"a"], None);
        conversation.asked("SET", &[b"a", b"1"], Some(Cut::BeforeReply));
        assert_eq!(conversation.answered(b"$-1\r\n"), WHOLE);
        assert_eq!(conversation.answered(b"+OK\r\n"), Due::Reply { cut: Some(Cut::BeforeReply), whole: true });
        assert_eq!(conversation.answered(b"+unasked\r\n"), Due::Push);
    }

    #[test]
    fn version_3_marks_what_comes_unasked_and_version_2_names_it() {
        let conversation = Conversation::default();
        conversation.asked("SUBSCRIBE", &[b"x", b"y"], None);
        assert_eq!(conversation.answered(&list(&["subscribe", "x", "1"], '*')), PART);
        assert_eq!(conversation.answered(&list(&["message", "x", "hello"], '*')), Due::Push);
        assert_eq!(conversation.answered(&list(&["subscribe", "y", "2"], '*')), WHOLE);
        conversation.asked("UNSUBSCRIBE", &[], None);
        assert_eq!(conversation.answered(&list(&["unsubscribe", "x", "1"], '*')), PART);
        assert_eq!(conversation.answered(&list(&["unsubscribe", "y", "0"], '*')), WHOLE);

        let conversation = Conversation::default();
        conversation.asked("HELLO", &[b"3"], None);
        conversation.asked("SUBSCRIBE", &[b"x"], None);
        conversation.asked("LRANGE", &[b"a", b"0", b"-1"], None);
        assert_eq!(conversation.answered(b"%0\r\n"), WHOLE);
        assert_eq!(conversation.answered(&list(&["invalidate", "z"], '>')), Due::Push);
        assert_eq!(conversation.answered(&list(&["subscribe", "x", "1"], '>')), WHOLE);
        assert_eq!(conversation.answered(&list(&["message", "x", "hello"], '>')), Due::Push);
        // A list whose first entry is the word.
        assert_eq!(conversation.answered(&list(&["message", "x", "hello"], '*')), WHOLE);
    }

    #[test]
    fn a_subscription_that_is_refused_is_answered_once() {
        let conversation = Conversation::default();
        conversation.asked("SUBSCRIBE", &[b"x", b"y"], None);
        conversation.asked("PING", &[], None);
        assert_eq!(conversation.answered(b"-NOPERM no\r\n"), WHOLE);
        assert_eq!(conversation.answered(b"+PONG\r\n"), WHOLE);
    }
}
