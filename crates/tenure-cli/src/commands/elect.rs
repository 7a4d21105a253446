//! `tenure elect`: the leader of an election.

use clap::Args;
use serde::Serialize;
use tenure::Printable;

use crate::connect::connect_blocking;
use crate::exit::{self, Outcome};
use crate::output::data::{write_data, write_json};
use crate::output::holder::who;

const AFTER_HELP: &str = "\
Example:
  tenure elect scheduler    who leads `tenure run scheduler --leader`

Exit codes:
  0    the leader was printed
  1    nobody leads
  64   wrong usage
  69   the engine is not available";

/// Show who leads an election; exit code 1: nobody does
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Elect {
    /// The election, as in `tenure run NAME --leader`
    pub(crate) name: String,
    /// Write a JSON object, or null: its fields are in docs/command.md
    #[arg(long)]
    pub(crate) json: bool,
}

/// A leader in JSON. Field names are stable.
#[derive(Serialize)]
struct LeaderJson<'a> {
    name: &'a str,
    host: &'a str,
    pid: u32,
    program: &'a str,
    label: &'a str,
    token: u64,
    value: Option<String>,
}

/// Shows the leader. Exit code 1: there is none.
pub(crate) fn elect(elect: &Elect, engine: &str) -> Outcome {
    let tenure = connect_blocking(engine)?;
    let leader = pollster::block_on(tenure.election(&elect.name).leader())?;
    let Some(leader) = leader else {
        if elect.json {
            write_json(&None::<LeaderJson<'_>>)?;
        } else {
            write_data(&format!("nobody leads {:?}\n", elect.name))?;
        }
        return Ok(exit::DECLINED);
    };
    let value = leader.value.as_deref().map(|value| String::from_utf8_lossy(value).into_owned());
    if elect.json {
        write_json(&LeaderJson {
            name: &elect.name,
            host: leader.label.host(),
            pid: leader.label.pid(),
            program: leader.label.program(),
            label: leader.label.text(),
            token: leader.token.get(),
            value,
        })?;
    } else {
        let value = value.map_or_else(String::new, |value| format!(", {}", Printable(&value)));
        write_data(&format!("{} leads under token {}{value}\n", who(&leader.label), leader.token))?;
    }
    Ok(0)
}
