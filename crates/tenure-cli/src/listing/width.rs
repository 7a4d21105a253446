//! How wide a text is on a terminal, and what of it fits.
//!
//! A terminal shows a character of Chinese in two columns and an accent in none, so neither bytes nor characters count. What belongs
//! together, a letter and its accents, is never parted.

use std::borrow::Cow;

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// What stands for what was cut out.
const CUT: &str = "…";
/// How narrow a column may become.
const COLUMN_MIN: usize = 10;

/// Returns how many columns a text takes.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// Cuts a text in its middle: names that belong together begin alike, and their ends tell them apart.
pub(crate) fn cut_middle(text: &str, most: usize) -> Cow<'_, str> {
    if columns(text) <= most {
        return Cow::Borrowed(text);
    }
    let room = most.saturating_sub(columns(CUT));
    let begin = take(text.graphemes(true), room.div_ceil(2));
    let end = take(text.graphemes(true).rev(), room - columns(&text[..begin]));
    let shown = if most == 0 { "" } else { CUT };
    Cow::Owned(format!("{}{shown}{}", &text[..begin], &text[text.len() - end..]))
}

/// Returns how many bytes of a text fit.
fn take<'a>(parts: impl Iterator<Item = &'a str>, most: usize) -> usize {
    let (mut bytes, mut width) = (0, 0);
    for part in parts {
        width += columns(part);
        if width > most {
            break;
        }
        bytes += part.len();
    }
    bytes
}

/// Adds spaces to a text until it is so wide.
pub(crate) fn pad(text: &str, width: usize, is_right: bool) -> String {
    let spaces = " ".repeat(width.saturating_sub(columns(text)));
    if is_right { format!("{spaces}{text}") } else { format!("{text}{spaces}") }
}

/// Makes columns narrower until they fit beside each other with `gap` between two: of those that may be cut, the widest first.
pub(crate) fn fit(widths: &mut [usize], may_be_cut: &[usize], gap: usize, most: usize) {
    loop {
        let all = widths.iter().sum::<usize>() + gap * widths.len().saturating_sub(1);
        let widest = may_be_cut.iter().copied().max_by_key(|column| widths[*column]);
        let Some(widest) = widest.filter(|column| all > most && widths[*column] > COLUMN_MIN) else { return };
        // Down to the next one at once: a name may have 255 columns.
        let others = may_be_cut.iter().filter(|column| **column != widest).map(|column| widths[*column]);
        let next = others.max().unwrap_or_default().max(COLUMN_MIN);
        let step = (all - most).min(widths[widest].saturating_sub(next)).max(1);
        widths[widest] -= step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_fits_stays_and_a_longer_one_is_cut_in_the_middle() {
        for (text, most, expected) in [
            ("billing/4711", 12, "billing/4711"),
            ("billing/4711", 11, "billi…/4711"),
            ("billing/4711", 4, "bi…1"),
            ("billing/4711", 1, "…"),
            ("billing/4711", 0, ""),
            ("", 0, ""),
        ] {
            assert_eq!(cut_middle(text, most), expected, "{most}");
        }
    }

    #[test]
    fn wide_characters_count_two_and_are_never_parted() {
        let name = "账单".repeat(10);
        assert_eq!(columns(&name), 40);
        for most in 0..=40 {
            let cut = cut_middle(&name, most);
            assert!(columns(&cut) <= most, "{most}: {cut}");
            // One column may stay free: half a character is none.
            assert!(columns(&cut) + 2 > most, "{most}: {cut}");
        }
        assert_eq!(cut_middle(&name, 9), "账单…账单");
        // An `e` and its accent are one.
        assert_eq!(cut_middle("e\u{301}e\u{301}e\u{301}e\u{301}", 3), "e\u{301}…e\u{301}");
        assert_eq!(pad("账", 4, false) + "|", "账  |");
        assert_eq!(pad("7", 4, true), "   7");
    }

    #[test]
    fn the_widest_column_gives_way_first() {
        let fitted = |widths: &[usize], most| {
            let mut widths = widths.to_vec();
            fit(&mut widths, &[0, 2], 2, most);
            widths
        };
        assert_eq!(fitted(&[20, 5, 20], 49), [20, 5, 20]);
        assert_eq!(fitted(&[255, 5, 30], 80), [41, 5, 30]);
        assert_eq!(fitted(&[255, 5, 60], 49), [20, 5, 20]);
        assert_eq!(fitted(&[255, 5, 60], 20), [10, 5, 10], "what is too narrow says nothing");
    }
}
