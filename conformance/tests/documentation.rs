//! The documentation lists the wrong stores that the gallery has, and the mutations of our stores, and what catches each.

/// The page of the crate's documentation.
const PAGE: &str = include_str!("../docs/wrong_stores.md");
const GALLERY: &str = include_str!("wrong_stores.rs");

const HEAD: &str = "\n\n# What it catches\n\nThe suite is tested by stores that make one plausible mistake each. Every one of \
                    them is caught, by this check:\n\n| the mistake | caught by |\n|---|---|\n";

#[test]
fn the_documentation_lists_every_wrong_store_and_what_catches_it() {
    let page = HEAD.to_owned() + &rows();
    assert!(PAGE == page, "docs/wrong_stores.md must be this:\n{page}");
}

/// A row for each `caught!` of the gallery, with the documentation of its store.
fn rows() -> String {
    let (mut rows, mut documentation, mut mistake, mut check) = (String::new(), String::new(), String::new(), None);
    for line in GALLERY.lines() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("/// ") {
            documentation += if documentation.is_empty() { "" } else { " " };
            documentation += text;
            continue;
        }
        if !documentation.is_empty() && (line == "#[derive(Default)]" || line.starts_with("struct ")) {
            mistake = std::mem::take(&mut documentation);
        } else if let Some(named) = line.strip_prefix("by ") {
            check = Some(named.trim_end_matches(','));
        } else if line.starts_with("saying ") {
            let check = check.take().expect("a wrong store is caught by a check");
            let (_, name) = check.split_once("::").expect("a check is in a group");
            rows += &format!("| {mistake} | [`{name}`]({check}) |\n");
        }
        documentation.clear();
    }
    rows
}
