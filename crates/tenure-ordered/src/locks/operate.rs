//! What operators do.

use std::time::Duration;

use tenure_core::engine::BreakAnswer;
use tenure_core::model::claim::{CAPACITY_MAX, Kind, Name};
use tenure_core::model::line::Resized;
use tenure_core::model::token::Token;
use tenure_core::{Error, ErrorKind, Result};

use crate::locks::ordered::Shared;
use crate::store::Store;

impl<S: Store> Shared<S> {
    pub(crate) async fn break_hold(&self, name: &Name, token: Token, at_once: bool) -> Result<BreakAnswer> {
        let line = self.read_line(name).await?.line;
        if let Some(rest) = line.rests().iter().find(|rest| rest.entry.token() == token) {
            let lasts = rest.entry.about.as_ref().map_or(Duration::ZERO, |about| about.lasts);
            if !at_once {
                return Ok(BreakAnswer::Resting { free_in: lasts });
            }
            let was = self.store.end_rest(name, rest).await?;
            return Ok(if was {
                BreakAnswer::Broken { free_in: Duration::ZERO }
            } else {
                BreakAnswer::NotHeld
            });
        }
        let held = line.places()[..line.holding()].iter().find(|place| place.entry.token() == token);
        let Some(place) = held else { return Ok(BreakAnswer::NotHeld) };
        let about = place.entry.about.as_ref();
        let lasts = about.map_or(Duration::ZERO, |about| about.lasts);
        if !at_once && about.is_some_and(|about| about.is_broken) {
            return Ok(BreakAnswer::Resting { free_in: lasts });
        }
        let slot = line.slot_of(place.entry.claim).map(|slot| slot.number);
        if !self.store.break_place(name, place, slot, at_once).await? {
            return Ok(BreakAnswer::NotHeld);
        }
        Ok(BreakAnswer::Broken { free_in: if at_once { Duration::ZERO } else { lasts } })
    }

    pub(crate) async fn resize(&self, name: &Name, capacity: u32) -> Result<()> {
        let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, "resize", why));
        if capacity == 0 || capacity > CAPACITY_MAX {
            return invalid(format!("a capacity is 1 to {CAPACITY_MAX}"));
        }
        let line = self.read_line(name).await?.line;
        let Some((kind, present)) = line.kind_and_capacity() else { return Ok(()) };
        if !matches!(kind, Kind::Semaphore | Kind::SlotPool) {
            return invalid(format!("a {kind} has no other capacity"));
        }
        if present == capacity {
            return Ok(());
        }
        let after = |order: Option<u64>| order.map_or(0, |order| order + 1);
        let last = line.places().last().map(|place| place.order);
        let before = after(last.max(line.rests().last().map(|rest| rest.order)));
        let held_before = after(line.places()[..line.holding()].last().map(|place| place.order));
        self.store.resize(name, Resized { before, held_before, capacity }).await
    }
}
