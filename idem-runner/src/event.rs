//! Events with names that do not change. `docs/observability.md` lists them.

/// An event of `tracing`: level, name, fields, message.
macro_rules! event {
    ($level:ident, $name:literal, $($rest:tt)+) => {
        tracing::event!(name: concat!("idem.", $name), target: "idem", tracing::Level::$level, $($rest)+)
    };
}

pub(crate) use event;
