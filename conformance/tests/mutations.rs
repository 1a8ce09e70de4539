//! The mutations of our stores, which `./scripts/mutate` tries: each fits the code still, and the documentation says of
//! each what catches it.

#![allow(clippy::panic, reason = "a test fails by panicking")]

use std::{collections::HashSet, fs, path::Path};

const PAGE: &str = include_str!("../docs/mutations.md");

/// By store, in the order of the page.
const LISTS: [(&str, &str); 4] = [
    ("redis", include_str!("../mutations/redis.txt")),
    ("postgres", include_str!("../mutations/postgres.txt")),
    ("sqlite", include_str!("../mutations/sqlite.txt")),
    ("memory", include_str!("../mutations/memory.txt")),
];

#[derive(Default)]
struct Mutation {
    name: String,
    changes: Vec<Change>,
    own_test: Option<String>,
    equivalent: Option<String>,
}

#[derive(Clone, Default)]
struct Change {
    file: String,
    old: Vec<String>,
    new: Vec<String>,
}

/// Reads a list as the script does.
fn mutations(list: &str) -> Vec<Mutation> {
    let mut mutations: Vec<Mutation> = Vec::new();
    let mut file = String::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        let (mark, text) = (&line[..1], line.get(2..).unwrap_or_default().to_owned());
        if mark == "=" {
            mutations.push(Mutation { name: text, ..Mutation::default() });
            continue;
        }
        if mark == "#" {
            continue;
        }
        let mutation = mutations.last_mut().expect("a list begins with a name");
        match mark {
            "@" => {
                file = text;
                mutation.changes.push(Change { file: file.clone(), ..Change::default() });
            }
            "-" => {
                let goes_on = mutation.changes.last().is_some_and(|change| change.new.is_empty());
                if !goes_on {
                    mutation.changes.push(Change { file: file.clone(), ..Change::default() });
                }
                mutation.changes.last_mut().expect("there is one").old.push(text);
            }
            "+" => mutation.changes.last_mut().expect("a change names its file").new.push(text),
            ">" => match text.split_once(": ") {
                Some(("own test", test)) => mutation.own_test = Some(test.to_owned()),
                Some(("equivalent", why)) => mutation.equivalent = Some(why.to_owned()),
                Some(("module", _)) => {}
                _ => panic!("no such option: {text}"),
            },
            _ => panic!("a line begins with one of = @ - + > #: {line}"),
        }
    }
    mutations
}

/// The rows of a store on the page.
fn rows(store: &str) -> Vec<(&'static str, &'static str)> {
    let heading = format!("## {store}\n");
    let (_, section) = PAGE.split_once(&heading).unwrap_or_else(|| panic!("the page has no section for {store}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    rows.skip(1).collect() // the head
}

#[test]
fn every_mutation_is_on_the_page_in_its_order_and_no_other_is() {
    for (store, list) in LISTS {
        let mutations = mutations(list);
        let listed: Vec<&str> = mutations.iter().map(|mutation| &*mutation.name).collect();
        let on_page: Vec<&str> = rows(store).into_iter().map(|(name, _)| name).collect();
        assert_eq!(on_page, listed, "{store}: run ./scripts/mutate {store} --new");
    }
}

#[test]
fn every_mutation_is_caught_or_the_list_says_why_not() {
    for (store, list) in LISTS {
        for (mutation, (name, caught_by)) in mutations(list).iter().zip(rows(store)) {
            let expected = match (&mutation.own_test, &mutation.equivalent) {
                (Some(test), None) => format!("idem-{store}'s own test `{test}`"),
                (None, Some(why)) => format!("no difference: {why}"),
                (None, None) => {
                    let is_check = caught_by.starts_with("[`") && caught_by.contains("`](") && caught_by.ends_with(')');
                    assert!(is_check, "{store}: {name}: no check is named, but {caught_by}");
                    continue;
                }
                (Some(_), Some(_)) => panic!("{store}: {name}: it can't be both"),
            };
            assert_eq!(caught_by, expected, "{store}: {name}");
        }
    }
}

#[test]
fn every_mutation_fits_the_code_and_has_a_name_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is above the crate");
    for (store, list) in LISTS {
        let mut names = HashSet::new();
        for mutation in mutations(list) {
            let name = mutation.name;
            assert!(!mutation.changes.is_empty(), "{store}: {name}: it changes nothing");
            for Change { file, old, new } in mutation.changes {
                let code = fs::read_to_string(root.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
                let (old, new) = (old.join("\n"), new.join("\n"));
                assert_eq!(code.matches(&old).count(), 1, "{store}: {name}: this is not in {file} once:\n{old}");
                assert_ne!(old, new, "{store}: {name}");
            }
            assert!(names.insert(name.clone()), "{store}: {name}: there are two of this name");
        }
    }
}
