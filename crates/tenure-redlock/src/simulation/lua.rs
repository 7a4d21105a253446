//! The scripts that ship, run where no server is: in the Lua that Redis has, on the keys of a simulated server.

use std::cell::RefCell;
use std::collections::HashMap;

use mlua::{Function, Lua, MultiValue, Table, Value as Luas};
use redis::{Arg, Cmd, Value};

use super::store::{Answer, Keys};
use crate::library::LIBRARY;

thread_local! {
    static INTERPRETER: Interpreter = Interpreter::new().expect("the library can be loaded");
    /// The keys of the server whose call is carried out.
    static KEYS: RefCell<Keys> = RefCell::default();
}

/// What is raised is a table, as Redis raises one: nothing but Lua can do that.
const CALL: &str = "\
local pcall = redis.pcall
function redis.call(...)
  local answer = pcall(...)
  if type(answer) == 'table' and answer.err then error(answer, 0) end
  return answer
end";

/// A Lua with the library in it. One serves all servers: each call begins by reading what it knows anew.
struct Interpreter {
    lua: Lua,
    functions: HashMap<String, Function>,
}

impl Interpreter {
    fn new() -> mlua::Result<Interpreter> {
        let lua = Lua::new();
        let (redis, functions) = (lua.create_table()?, lua.create_table()?);
        redis.set(
            "pcall",
            lua.create_function(|lua, words| match command(words) {
                Ok(value) => to_lua(lua, &value),
                Err(why) => lua.create_table_from([("err", why)]).map(Luas::Table),
            })?,
        )?;
        let registered = functions.clone();
        redis.set(
            "register_function",
            lua.create_function(move |_, function: Table| {
                registered
                    .set(function.get::<String>("function_name")?, function.get::<Function>("callback")?)
            })?,
        )?;
        lua.globals().set("redis", redis)?;
        lua.load(CALL).exec()?;
        let text = LIBRARY.text().split_once('\n').expect("the first line names the library").1;
        lua.load(text).set_name("redlock.lua").exec()?;
        let functions = functions.pairs().collect::<mlua::Result<_>>()?;
        Ok(Interpreter { lua, functions })
    }

    fn run(&self, name: &str, keys: &[&[u8]], arguments: &[&[u8]]) -> mlua::Result<Value> {
        let function =
            self.functions.get(name).ok_or_else(|| mlua::Error::runtime(format!("no function {name}")))?;
        let strings = |words: &[&[u8]]| {
            let words = words.iter().map(|word| self.lua.create_string(word));
            self.lua.create_sequence_from(words.collect::<mlua::Result<Vec<_>>>()?)
        };
        from_lua(function.call::<Luas>((strings(keys)?, strings(arguments)?))?)
    }
}

/// Does what `redis.call` is told.
fn command(words: MultiValue) -> Answer {
    let words = words.into_iter().map(|word| match word {
        Luas::String(word) => Ok(word.as_bytes().to_vec()),
        Luas::Integer(number) => Ok(number.to_string().into_bytes()),
        Luas::Number(number) => Ok(format!("{number}").into_bytes()),
        other => Err(format!("ERR an argument is a {}", other.type_name())),
    });
    let words = words.collect::<Result<Vec<_>, _>>()?;
    KEYS.with_borrow_mut(|keys| keys.command(&words))
}

fn to_lua(lua: &Lua, value: &Value) -> mlua::Result<Luas> {
    Ok(match value {
        Value::Int(number) => Luas::Integer(*number),
        Value::BulkString(bytes) => Luas::String(lua.create_string(bytes)?),
        Value::Array(items) => {
            let items = items.iter().map(|item| to_lua(lua, item));
            Luas::Table(lua.create_sequence_from(items.collect::<mlua::Result<Vec<_>>>()?)?)
        }
        Value::Okay => Luas::Table(lua.create_table_from([("ok", "OK")])?),
        _ => Luas::Boolean(false),
    })
}

/// As Redis makes an answer of what a function returns.
fn from_lua(value: Luas) -> mlua::Result<Value> {
    Ok(match value {
        Luas::Integer(number) => Value::Int(number),
        Luas::Number(number) => Value::Int(number as i64),
        Luas::String(bytes) => Value::BulkString(bytes.as_bytes().to_vec()),
        Luas::Boolean(true) => Value::Int(1),
        Luas::Table(table) => {
            let items = table.sequence_values::<Luas>().map(|item| from_lua(item?));
            Value::Array(items.collect::<mlua::Result<_>>()?)
        }
        _ => Value::Nil,
    })
}

/// Carries out a call of a function on the keys of a server, at a moment of its clock in microseconds.
///
/// # Errors
/// What the function has raised.
pub(crate) fn execute(keys: &mut Keys, now: u64, cmd: &Cmd) -> Answer {
    let words = cmd.args_iter().map(|word| match word {
        Arg::Simple(word) => word,
        _ => b"",
    });
    let words: Vec<&[u8]> = words.collect();
    let [b"FCALL", name, count, rest @ ..] = &words[..] else {
        return Err(format!("ERR not a call of a function: {words:?}"));
    };
    let as_text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let (of_keys, arguments) = rest.split_at(as_text(count).parse().map_err(|_| "ERR how many keys?")?);
    keys.now = now;
    KEYS.set(std::mem::take(keys));
    let answer = INTERPRETER.with(|interpreter| interpreter.run(&as_text(name), of_keys, arguments));
    *keys = KEYS.take();
    answer.map_err(|error| error.to_string())
}
