//! The functions in the server: made once, beside the tables.

use tenure_sql::{Connection, Fault, Purpose};

use crate::client::connection::Connections;
use crate::dialect::literal;
use crate::migrate;
use crate::statement::Function;

/// Says whether the server has these functions, and makes them if they are not there. Only the owner of the tables makes them, or who
/// may do anything; and nobody calls what another has made, for a function does what it likes in the name of its caller, as a
/// trigger does that an owner puts on his tables.
pub(crate) async fn ensure(connections: &Connections, place: &str, functions: &[&Function]) -> bool {
    match try_to_ensure(connections, place, functions).await {
        Ok(are_there) => are_there,
        // No right to make any, or no such language: statements go as texts.
        Err(fault) => {
            tracing::debug!(?fault, "the server gets no functions");
            false
        }
    }
}

async fn try_to_ensure(
    connections: &Connections,
    place: &str,
    functions: &[&Function],
) -> Result<bool, Fault> {
    let signatures: Vec<String> = functions
        .iter()
        .map(|function| format!("to_regprocedure('{}')", literal(&function.signature)))
        .collect();
    let look = format!(
        "SELECT (SELECT count(*) FROM pg_proc p, pg_roles o WHERE p.oid IN ({}) AND o.oid = p.proowner \
           AND (o.oid = t.relowner OR o.rolsuper) AND has_function_privilege(p.oid, 'EXECUTE')) = {}, \
           me.rolsuper OR me.oid = t.relowner \
         FROM pg_class t, pg_roles me WHERE t.oid = to_regclass('{}version') AND me.rolname = current_user",
        signatures.join(", "),
        functions.len(),
        literal(place)
    );
    let mut connection = connections.lend(Purpose::Any).await?;
    let found = connection.run(look).await?;
    let says = |at: usize| found.iter().flatten().next().and_then(|row| row.get(at)?.as_deref()) == Some("t");
    let (are_there, may_make) = (says(0), says(1));
    if !are_there && may_make {
        let mut script = vec![migrate::alone()];
        script.extend(functions.iter().map(|function| function.definition.clone()));
        script.push("COMMIT".to_owned());
        connection.run(script.join(";\n")).await?;
    }
    connection.keep();
    Ok(are_there || may_make)
}

#[cfg(test)]
mod tests {
    use tenure_sql::Tables;

    use crate::plain::PlainTexts;
    use crate::queues::Texts;
    use crate::statement::{Function, Statement};

    /// Other versions of tenure call what this one makes. If this file must change, raise the revision, so that theirs stay as they are.
    #[test]
    fn the_functions_are_made_as_they_always_were() {
        let place = "tenure_";
        let (plain, texts) =
            (PlainTexts::new(place, &Tables::with_holds(place)), Texts::new(place, place, true));
        let all = plain.all().into_iter().chain(texts.functions());
        let made: Vec<&Function> = all.filter_map(Statement::as_function).collect();
        let definitions: String = made.iter().map(|function| format!("{};\n", function.definition)).collect();
        assert_eq!(definitions, include_str!("functions-1.sql"), "the functions differ");
        // With the longest prefix: the server cuts longer names, all to the same.
        let longest =
            |function: &&Function| function.signature.find('(').unwrap_or_default() - place.len() + 47;
        assert!(made.iter().map(longest).max() <= Some(63), "a name is too long");
    }

    /// The tables may be of before this version, or of before contexts: then there is no such function.
    #[test]
    fn older_tables_have_no_functions() {
        let (plain, texts) = (PlainTexts::new("t_", &Tables::new("t_")), Texts::new("t_", "t_", false));
        assert!(plain.all().into_iter().chain(texts.functions()).all(|one| one.as_function().is_none()));
    }
}
