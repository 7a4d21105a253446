//! The settings that the URLs of all databases have.

use tenure_core::Result;
use tenure_core::engine::url::Settings;

/// The longest name of a setting that is part of a table's name.
const BYTES_MAX: usize = 32;

/// Returns a setting that is part of a table's name, and thus of statements, as it is.
///
/// # Errors
/// [`ErrorKind::Invalid`](tenure_core::ErrorKind::Invalid) for what a statement would have to quote.
pub fn identifier(settings: &mut Settings, name: &'static str) -> Result<Option<String>> {
    let Some(text) = settings.text(name)? else { return Ok(None) };
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins_well = !text.starts_with(|c: char| c.is_ascii_digit());
    if text.len() > BYTES_MAX || !text.chars().all(is_plain) || !begins_well {
        return Err(settings.invalid(format!("`{name}` is not 1 to {BYTES_MAX} of a-z, 0-9 and _")));
    }
    Ok(Some(text))
}
