//! Visits every state, breadth first, so that what is found is found by the shortest way.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
};

use super::{
    rules::Rules,
    world::{Bounds, Fault, World},
};

/// How the promise was broken.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) fault: Fault,
    /// What happened, in order.
    story: Vec<String>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} after", self.fault)?;
        self.story.iter().try_for_each(|event| writeln!(f, "  {event}"))
    }
}

/// Visits every state within the bounds. Gives how many there are.
pub(super) fn search(rules: &impl Rules, bounds: &Bounds) -> Result<usize, Box<Found>> {
    let mut visited = HashSet::new();
    // Each with where it came from, and by what.
    let mut ways: Vec<(u32, String)> = vec![(0, String::new())];
    let first = World::new(bounds);
    visited.insert(first.mark(bounds));
    let mut open = VecDeque::from([(first, 0)]);
    while let Some((world, way)) = open.pop_front() {
        for (event, next) in world.nexts(rules, bounds) {
            let next = match next.and_then(|next| next.check(rules, bounds).map(|()| next)) {
                Ok(next) => next,
                Err(fault) => return Err(Box::new(Found { fault, story: story(&ways, way, event) })),
            };
            if visited.insert(next.mark(bounds)) {
                open.push_back((next, ways.len() as u32));
                ways.push((way, event));
            }
        }
    }
    Ok(visited.len())
}

fn story(ways: &[(u32, String)], mut way: u32, last: String) -> Vec<String> {
    let mut story = vec![last];
    while way != 0 {
        let (before, event) = &ways[way as usize];
        story.push(event.clone());
        way = *before;
    }
    story.reverse();
    story
}
