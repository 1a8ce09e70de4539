//! Who runs the servers.

use std::process::Command;
use std::sync::OnceLock;

/// A user and its group, by their numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The user that servers run as when this process is root, since PostgreSQL and PgBouncer refuse root; none otherwise.
pub(crate) fn unprivileged() -> Option<User> {
    static USER: OnceLock<Option<User>> = OnceLock::new();
    *USER.get_or_init(|| {
        if id(&["-u"]) != Some(0) {
            return None;
        }
        let found = ["postgres", "nobody"].into_iter().find_map(|name| {
            let user = User { uid: id(&["-u", name])?, gid: id(&["-g", name])? };
            (user.uid != 0).then_some(user)
        });
        Some(found.unwrap_or_else(|| {
            panic!("the tests run as root, servers refuse root, and there is no user postgres or nobody to run them")
        }))
    })
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().ok()?;
    // Some systems print a large number as a negative one.
    let number: i64 = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
    u32::try_from(number).ok().or_else(|| i32::try_from(number).ok().map(i32::cast_unsigned))
}
