//! Which server program is started.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::find;

/// The environment variable that names the program of another server that speaks Redis's protocol, such as Valkey's.
const VARIABLE: &str = "IDEM_TEST_REDIS_SERVER";

/// A server program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) version: Version,
}

/// Who made a server, and which version it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    /// `Redis` or `Valkey`.
    pub(crate) name: String,
    pub(crate) number: (u32, u32, u32),
}

impl Version {
    /// Refuses servers that idem does not promise to run on.
    pub(crate) fn checked(self, whose: &str) -> Self {
        let least = if self.name == "Valkey" { (7, 2, 0) } else { (7, 0, 0) };
        let (major, minor, patch) = self.number;
        assert!(
            self.number >= least,
            "{whose} is {} {major}.{minor}.{patch}, and idem needs {} {}.{} or newer",
            self.name,
            self.name,
            least.0,
            least.1
        );
        self
    }
}

/// The program that private servers run: `redis-server`, or the one that `IDEM_TEST_REDIS_SERVER` names.
pub(crate) fn program() -> &'static Program {
    static PROGRAM: OnceLock<Program> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os(VARIABLE) {
        Some(path) => {
            let path = PathBuf::from(path);
            assert!(path.is_file(), "{VARIABLE} is {}, and there is no such program", path.display());
            Program::at(path)
        }
        None => Program::at(find::program("redis-server").unwrap_or_else(|| panic!("{NOT_INSTALLED}"))),
    })
}

/// The same for servers that speak TLS. Where `IDEM_TEST_REDIS_SERVER` names a program that was built without it,
/// `redis-server` stands in, and this says so.
pub(crate) fn tls_program() -> &'static Program {
    static STANDS_IN: OnceLock<Option<Program>> = OnceLock::new();
    let stands_in = STANDS_IN.get_or_init(|| {
        let named = program();
        if named.speaks_tls() {
            return None;
        }
        let named = named.path.display();
        let usual = find::program("redis-server").map(Program::at).filter(Program::speaks_tls);
        let usual =
            usual.unwrap_or_else(|| panic!("{named} was built without TLS, and no redis-server speaks it either"));
        // Whoever reads the output of the tests must see what did not run on the program that was named.
        #[allow(clippy::print_stderr)]
        {
            eprintln!(
                "not on {named}, which was built without TLS: servers that speak it are {}",
                usual.path.display()
            );
        }
        Some(usual)
    });
    stands_in.as_ref().unwrap_or_else(|| program())
}

impl Program {
    fn at(path: PathBuf) -> Self {
        let output = Command::new(&path).arg("--version").output();
        let output = output.unwrap_or_else(|error| panic!("{} can't be run: {error}", path.display())).stdout;
        let text = String::from_utf8_lossy(&output);
        let version = said_version(&text).unwrap_or_else(|| panic!("{} says of its version: {text}", path.display()));
        let version = version.checked(&path.display().to_string());
        Self { path, version }
    }

    /// Whether it was built with TLS. One that was ends for want of a certificate, one that was not for want of TLS.
    fn speaks_tls(&self) -> bool {
        let arguments = ["--port", "0", "--tls-port", "1", "--save", "", "--appendonly", "no"];
        let output = Command::new(&self.path).args(arguments).current_dir(std::env::temp_dir()).output();
        let output = output.unwrap_or_else(|error| panic!("{} can't be run: {error}", self.path.display()));
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).contains("Failed to configure TLS")
    }
}

/// What to do where no server is installed.
const NOT_INSTALLED: &str = "\
these tests start a Redis server of their own, and none is installed. Install one, nothing has to be configured:
  - ./scripts/install-servers
  - or apt-get install redis-server (Debian, Ubuntu), brew install redis (macOS)
  - or name another program that speaks its protocol: IDEM_TEST_REDIS_SERVER=/path/to/valkey-server
  - or, for the tests that don't stop their server: docker compose up --detach --wait, and
    IDEM_TEST_REDIS_URL=redis://127.0.0.1:63799";

/// "Redis server v=7.0.15 sha=…", "Valkey server v=8.1.1 sha=…".
fn said_version(text: &str) -> Option<Version> {
    let mut words = text.split_ascii_whitespace();
    let name = words.next()?.to_owned();
    let number = words.find_map(|word| word.strip_prefix("v="))?;
    Some(Version { name, number: numbers(number)? })
}

/// The version in what `INFO server` answers.
pub(crate) fn asked_version(info: &str) -> Option<Version> {
    let value = |name| super::client::info_value(info, name);
    match value("valkey_version") {
        Some(number) => Some(Version { name: "Valkey".to_owned(), number: numbers(number)? }),
        None => Some(Version { name: "Redis".to_owned(), number: numbers(value("redis_version")?)? }),
    }
}

/// "8.1.0", or "8.1.0-rc1" of which the last part does not count.
fn numbers(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.splitn(3, '.');
    let mut next = || {
        let part = parts.next()?;
        part[..part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len())].parse().ok()
    };
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, number: (u32, u32, u32)) -> Version {
        Version { name: name.to_owned(), number }
    }

    #[test]
    fn programs_and_servers_say_who_they_are() {
        let said = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0\n";
        assert_eq!(said_version(said), Some(version("Redis", (7, 0, 15))));
        assert_eq!(said_version("Valkey server v=8.1.1 sha=0:0"), Some(version("Valkey", (8, 1, 1))));
        assert_eq!(said_version("bash: no such file"), None);
        let info = "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.0-rc2\r\n";
        assert_eq!(asked_version(info), Some(version("Valkey", (9, 0, 0))));
        assert_eq!(asked_version("redis_version:7.4.2\r\n"), Some(version("Redis", (7, 4, 2))));
    }

    #[test]
    fn a_server_that_is_too_old_is_refused_by_name() {
        let refused = std::panic::catch_unwind(|| version("Redis", (6, 2, 14)).checked("/usr/bin/redis-server"));
        let message = refused.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(*message, "/usr/bin/redis-server is Redis 6.2.14, and idem needs Redis 7.0 or newer");
        assert!(std::panic::catch_unwind(|| version("Valkey", (7, 1, 0)).checked("x")).is_err());
        let _ = version("Valkey", (7, 2, 5)).checked("x");
    }
}
