//! `tenure release`: an operator breaks somebody's hold.

use std::io::{self, IsTerminal, Write};

use tenure::{BreakAnswer, Tenure, Token, View};

use crate::arguments::Release;
use crate::exit::{self, Failure, Outcome};
use crate::output::{duration, write_data};

/// Breaks a hold.
pub(crate) fn release(release: &Release, engine: &str) -> Outcome {
    let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !release.force && !is_terminal {
        return Err(Failure::new(
            exit::USAGE,
            "breaking a hold needs a confirmation, and there is no terminal",
        )
        .with_hint("add `--force` if you are sure"));
    }
    let tenure = crate::connect(engine, None)?;
    if !release.force && !is_confirmed(&tenure, release)? {
        return Ok(exit::DECLINED);
    }
    let token = Token::new(release.token);
    let answer = pollster::block_on(tenure.break_hold(&release.name, token, release.now))?;
    let BreakAnswer::Broken { free_in } = answer else { return Err(not_held(&tenure, release)) };
    pollster::block_on(tenure.close());
    let when = if free_in.is_zero() {
        "it is free now; who held it may still work until it notices".to_owned()
    } else {
        format!("it is free in {} at the latest", duration(free_in))
    };
    write_data(&format!("broke the hold of {:?} with token {token}: {when}\n", release.name))?;
    Ok(0)
}

/// Shows what would be broken, and asks.
fn is_confirmed(tenure: &Tenure, release: &Release) -> Result<bool, Failure> {
    let view = pollster::block_on(tenure.view(&release.name))?;
    let hold = view.as_ref().and_then(|view| hold(view, release.token));
    let Some(hold) = hold else { return Err(not_held(tenure, release)) };
    let risk = if release.now {
        "\nThe lock is free at once, and two may work at the same time until the holder notices."
    } else {
        ""
    };
    let question = format!(
        "{:?} is held by {} for {}.{risk}\nBreak it? [y/N] ",
        release.name,
        hold.label,
        duration(hold.held_for)
    );
    let mut stderr = io::stderr().lock();
    let asked = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    asked.map_err(|error| Failure::system("ask", error))?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::system("read the answer", error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn hold(view: &View, token: u64) -> Option<&tenure::HoldView> {
    view.holds.iter().find(|hold| hold.claim.is_some() && hold.token.get() == token)
}

fn not_held(tenure: &Tenure, release: &Release) -> Failure {
    let failure =
        Failure::new(exit::USAGE, format!("{:?} has no hold with token {}", release.name, release.token));
    // Only for the hint: without an answer it says less.
    let view = pollster::block_on(tenure.view(&release.name)).ok().flatten();
    let held: Vec<_> = view.iter().flat_map(|view| &view.holds).filter(|hold| hold.claim.is_some()).collect();
    failure.with_hint(match held.as_slice() {
        [] => "nobody holds it; see `tenure status`".to_owned(),
        [hold] => format!("it is held under token {} by {}", hold.token, hold.label),
        [..] => "see `tenure status` for the tokens of its holds".to_owned(),
    })
}
