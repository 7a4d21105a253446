//! The keys of one server, and what the commands of `lua/redlock.lua` do with them: as much of Redis as those scripts use.
//!
//! `comparison.rs` runs the same calls here and on a real server, and compares answers and keys.

use std::collections::BTreeMap;

use redis::Value;

/// The fields of a hash.
type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a command answers, or the error that it raises.
pub(crate) type Answer = Result<Value, String>;

/// What is under a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Text(Vec<u8>),
    Hash(Fields),
    /// Scores by member.
    Sorted(BTreeMap<Vec<u8>, f64>),
}

/// A key, and when it ends, in milliseconds by the server's clock.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) data: Data,
    pub(crate) ends: Option<u64>,
}

/// All keys of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    pub(crate) keys: BTreeMap<Vec<u8>, Key>,
    /// The time of the call that is carried out, in microseconds: it stands still meanwhile.
    pub(crate) now: u64,
    /// What the call has published: channels and messages.
    pub(crate) published: Vec<(Vec<u8>, Vec<u8>)>,
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

fn text(bytes: impl Into<Vec<u8>>) -> Value {
    Value::BulkString(bytes.into())
}

fn int(number: usize) -> Answer {
    Ok(Value::Int(number as i64))
}

fn or_nil(found: Option<Vec<u8>>) -> Value {
    found.map_or(Value::Nil, Value::BulkString)
}

fn number(word: &[u8]) -> Result<i64, String> {
    let parsed = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
    parsed.ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}

fn score(word: &[u8]) -> Result<f64, String> {
    match word {
        b"-inf" => Ok(f64::NEG_INFINITY),
        word => {
            let parsed = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
            parsed.ok_or_else(|| "ERR value is not a valid float".to_owned())
        }
    }
}

/// A score as Redis says it: all scores of the scripts are whole.
fn shown(score: f64) -> Value {
    text(format!("{score:.0}"))
}

impl Keys {
    pub(crate) fn millis(&self) -> u64 {
        self.now / 1000
    }

    /// A key that has not ended. Redis still shows one in the millisecond in which it ends.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Key> {
        self.keys.get(key).filter(|found| found.ends.is_none_or(|ends| ends >= self.millis()))
    }

    fn get_mut(&mut self, key: &[u8]) -> Option<&mut Key> {
        let now = self.millis();
        self.keys.get_mut(key).filter(|found| found.ends.is_none_or(|ends| ends >= now))
    }

    /// Drops what has ended.
    pub(crate) fn tidy(&mut self) {
        let now = self.millis();
        self.keys.retain(|_, key| key.ends.is_none_or(|ends| ends >= now));
    }

    fn texts(&self, key: &[u8]) -> Result<Option<&Vec<u8>>, String> {
        match self.get(key).map(|found| &found.data) {
            None => Ok(None),
            Some(Data::Text(text)) => Ok(Some(text)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn hash(&self, key: &[u8]) -> Result<Option<&Fields>, String> {
        match self.get(key).map(|found| &found.data) {
            None => Ok(None),
            Some(Data::Hash(fields)) => Ok(Some(fields)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn scores(&self, key: &[u8]) -> Result<Option<&BTreeMap<Vec<u8>, f64>>, String> {
        match self.get(key).map(|found| &found.data) {
            None => Ok(None),
            Some(Data::Sorted(scores)) => Ok(Some(scores)),
            Some(_) => Err(WRONG_TYPE.to_owned()),
        }
    }

    /// Returns what is under a key, made anew where there is nothing.
    fn or_new(&mut self, key: &[u8], data: Data) -> &mut Data {
        if self.get(key).is_none() {
            self.keys.insert(key.to_vec(), Key { data, ends: None });
        }
        &mut self.keys.get_mut(key).expect("it is there").data
    }

    /// A key without members is none.
    fn drop_empty(&mut self, key: &[u8]) {
        let is_empty = self.keys.get(key).is_some_and(|found| match &found.data {
            Data::Text(_) => false,
            Data::Hash(fields) => fields.is_empty(),
            Data::Sorted(scores) => scores.is_empty(),
        });
        if is_empty {
            self.keys.remove(key);
        }
    }

    /// The members of a sorted set in their order.
    fn in_order(&self, key: &[u8]) -> Result<Vec<(&Vec<u8>, f64)>, String> {
        let mut members: Vec<(&Vec<u8>, f64)> =
            self.scores(key)?.into_iter().flatten().map(|(member, score)| (member, *score)).collect();
        members.sort_by(|one, other| one.1.total_cmp(&other.1).then_with(|| one.0.cmp(other.0)));
        Ok(members)
    }

    /// Does what a command says.
    pub(crate) fn command(&mut self, words: &[Vec<u8>]) -> Answer {
        let [name, words @ ..] = words else { return Err("ERR no command".to_owned()) };
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match (name.as_slice(), words.as_slice()) {
            (b"TIME", []) => Ok(Value::Array(vec![
                text((self.now / 1_000_000).to_string()),
                text((self.now % 1_000_000).to_string()),
            ])),
            (b"EXISTS", keys) => int(keys.iter().filter(|key| self.get(key).is_some()).count()),
            (b"DEL", keys) => {
                let there = keys.iter().filter(|key| self.get(key).is_some()).count();
                keys.iter().for_each(|key| drop(self.keys.remove(*key)));
                int(there)
            }
            (b"PUBLISH", [channel, message]) => {
                self.published.push((channel.to_vec(), message.to_vec()));
                int(1)
            }
            (b"GET", [key]) => Ok(or_nil(self.texts(key)?.cloned())),
            (b"MGET", keys) => {
                let texts = keys.iter().map(|key| or_nil(self.texts(key).ok().flatten().cloned()));
                Ok(Value::Array(texts.collect()))
            }
            (b"SET", [key, value, options @ ..]) => self.set(key, value, options),
            (b"PEXPIRE", [key, period]) => {
                let at = self.millis() as i64 + number(period)?;
                self.end_at(key, at, false)
            }
            (b"PEXPIREAT", [key, at]) => self.end_at(key, number(at)?, false),
            (b"PEXPIREAT", [key, at, b"GT"]) => self.end_at(key, number(at)?, true),
            (b"PEXPIRETIME", [key]) => Ok(Value::Int(match self.get(key) {
                None => -2,
                Some(found) => found.ends.map_or(-1, |ends| ends as i64),
            })),
            (b"PTTL", [key]) => Ok(Value::Int(match self.get(key) {
                None => -2,
                Some(found) => found.ends.map_or(-1, |ends| (ends - self.millis()) as i64),
            })),
            (b"HGET", [key, field]) => {
                Ok(or_nil(self.hash(key)?.and_then(|fields| fields.get(*field).cloned())))
            }
            (b"HMGET", [key, fields @ ..]) => {
                let hash = self.hash(key)?;
                let values =
                    fields.iter().map(|field| or_nil(hash.and_then(|hash| hash.get(*field).cloned())));
                Ok(Value::Array(values.collect()))
            }
            (b"HSET", [key, pairs @ ..]) => self.hset(key, pairs),
            (b"HDEL", [key, fields @ ..]) => {
                self.hash(key)?;
                let Some(Key { data: Data::Hash(hash), .. }) = self.get_mut(key) else { return int(0) };
                let gone = fields.iter().filter(|field| hash.remove(**field).is_some()).count();
                self.drop_empty(key);
                int(gone)
            }
            (name, words) if name.starts_with(b"Z") => self.sorted(name, words),
            _ => Err(format!("ERR unknown command {}", String::from_utf8_lossy(name))),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[&[u8]]) -> Answer {
        let (mut ends, mut rest) = (None, options);
        while let [option, others @ ..] = rest {
            rest = others;
            match *option {
                b"NX" if self.get(key).is_some() => return Ok(Value::Nil),
                b"NX" => {}
                b"PX" | b"PXAT" => {
                    let [at, others @ ..] = others else { return Err("ERR syntax error".to_owned()) };
                    rest = others;
                    let from = if *option == b"PX" { self.millis() as i64 } else { 0 };
                    ends = Some(u64::try_from(from + number(at)?).unwrap_or(0));
                }
                _ => return Err("ERR syntax error".to_owned()),
            }
        }
        self.keys.insert(key.to_vec(), Key { data: Data::Text(value.to_vec()), ends });
        Ok(Value::Okay)
    }

    fn end_at(&mut self, key: &[u8], at: i64, only_later: bool) -> Answer {
        let now = self.millis();
        let Some(found) = self.get_mut(key) else { return int(0) };
        let at = u64::try_from(at).unwrap_or(0);
        if only_later && found.ends.is_none_or(|ends| at <= ends) {
            return int(0);
        }
        found.ends = Some(at);
        if at <= now {
            self.keys.remove(key);
        }
        int(1)
    }

    fn hset(&mut self, key: &[u8], pairs: &[&[u8]]) -> Answer {
        self.hash(key)?;
        let Data::Hash(hash) = self.or_new(key, Data::Hash(BTreeMap::new())) else {
            return Err(WRONG_TYPE.to_owned());
        };
        let mut new = 0;
        for pair in pairs.chunks_exact(2) {
            new += usize::from(hash.insert(pair[0].to_vec(), pair[1].to_vec()).is_none());
        }
        int(new)
    }

    fn sorted(&mut self, name: &[u8], words: &[&[u8]]) -> Answer {
        match (name, words) {
            (b"ZADD", [key, at, member]) => {
                let at = score(at)?;
                self.scores(key)?;
                let Data::Sorted(scores) = self.or_new(key, Data::Sorted(BTreeMap::new())) else {
                    return Err(WRONG_TYPE.to_owned());
                };
                int(usize::from(scores.insert(member.to_vec(), at).is_none()))
            }
            (b"ZREM", [key, member]) => {
                self.scores(key)?;
                let Some(Key { data: Data::Sorted(scores), .. }) = self.get_mut(key) else { return int(0) };
                let gone = usize::from(scores.remove(*member).is_some());
                self.drop_empty(key);
                int(gone)
            }
            (b"ZSCORE", [key, member]) => {
                let found = self.scores(key)?.and_then(|scores| scores.get(*member));
                Ok(found.map_or(Value::Nil, |score| shown(*score)))
            }
            (b"ZCARD", [key]) => int(self.scores(key)?.map_or(0, BTreeMap::len)),
            (b"ZRANK", [key, member]) => {
                let rank = self.in_order(key)?.iter().position(|(other, _)| other == member);
                Ok(rank.map_or(Value::Nil, |rank| Value::Int(rank as i64)))
            }
            (b"ZRANGE", [key, first, last, options @ ..]) => {
                let members = self.in_order(key)?;
                let count = members.len() as i64;
                let place = |at: i64| if at < 0 { at + count } else { at };
                let (first, last) = (place(number(first)?).max(0), place(number(last)?).min(count - 1));
                let with_scores = matches!(options, [b"WITHSCORES"]);
                let mut found = Vec::new();
                for at in first..=last {
                    let (member, score) = &members[at as usize];
                    found.push(text((*member).clone()));
                    found.extend(with_scores.then(|| shown(*score)));
                }
                Ok(Value::Array(found))
            }
            (b"ZRANGEBYSCORE", [key, least, most, b"LIMIT", skipped, count]) => {
                let (least, most) = (score(least)?, score(most)?);
                let (skipped, count) = (number(skipped)? as usize, number(count)? as usize);
                let members = self.in_order(key)?;
                let within = members.iter().filter(|(_, score)| (least..=most).contains(score));
                let found = within.skip(skipped).take(count).map(|(member, _)| text((*member).clone()));
                Ok(Value::Array(found.collect()))
            }
            (b"ZREMRANGEBYSCORE", [key, least, most]) => {
                let range = score(least)?..=score(most)?;
                self.scores(key)?;
                let Some(Key { data: Data::Sorted(scores), .. }) = self.get_mut(key) else { return int(0) };
                let before = scores.len();
                scores.retain(|_, score| !range.contains(score));
                let gone = before - scores.len();
                self.drop_empty(key);
                int(gone)
            }
            _ => Err(format!("ERR unknown command {}", String::from_utf8_lossy(name))),
        }
    }
}
