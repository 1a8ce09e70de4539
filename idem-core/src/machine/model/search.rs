//! Visits every state, breadth first, so that what is found is found by the shortest way.

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
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
    pub(super) story: Vec<String>,
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
    let mut ways: Vec<(usize, String)> = vec![(0, String::new())];
    let mut open = VecDeque::from([(World::new(bounds), 0)]);
    visited.insert(mark(&open[0].0));
    while let Some((world, way)) = open.pop_front() {
        let nexts = world.nexts(rules, bounds);
        for (event, next) in nexts {
            let next = match next.and_then(|next| next.check(rules, bounds).map(|()| next)) {
                Ok(next) => next,
                Err(fault) => {
                    let story = story(&ways, way, event);
                    return Err(Box::new(Found { fault, story }));
                }
            };
            if visited.insert(mark(&next)) {
                ways.push((way, event));
                open.push_back((next, ways.len() - 1));
            }
        }
    }
    Ok(visited.len())
}

fn story(ways: &[(usize, String)], mut way: usize, last: String) -> Vec<String> {
    let mut story = vec![last];
    while way != 0 {
        story.push(ways[way].1.clone());
        way = ways[way].0;
    }
    story.reverse();
    story
}

/// 128 bits of a state: among some millions no two are alike.
fn mark(world: &World) -> u128 {
    let half = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        world.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}
