//! xl's configuration syntax (Xen `tools/libs/util/libxlu_cfg_l.l`, `_y.y`).

mod lexer;
#[cfg(test)]
mod tests;

use lexer::{Lexer, Token};

/// The deepest nesting of lists that is followed. xl's own settings nest one
/// deep.
const MAX_DEPTH: u32 = 16;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string or number, as its text.
    Atom(String),
    /// A list.
    List(Vec<Value>),
}

impl Value {
    /// The text of a string or number.
    pub fn atom(&self) -> Option<&str> {
        match self {
            Self::Atom(text) => Some(text),
            Self::List(_) => None,
        }
    }

    /// The strings and numbers of a list; a single one stands for a list of
    /// itself.
    pub fn atoms(&self) -> Vec<&str> {
        match self {
            Self::Atom(text) => vec![text],
            Self::List(values) => values.iter().filter_map(Self::atom).collect(),
        }
    }
}

/// The settings of a configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Config {
    settings: Vec<(String, Value)>,
    /// The first line that did not parse.
    pub bad_line: Option<usize>,
}

impl Config {
    /// Reads what can be read of `text`.
    pub fn parse(text: &str) -> Self {
        let mut parser = Parser {
            lexer: Lexer::new(text),
            peeked: None,
            config: Self::default(),
        };
        parser.statements();
        parser.config
    }

    /// The value of a setting: the last assignment counts.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let setting = self.settings.iter().rev().find(|(n, _)| n == name)?;
        Some(&setting.1)
    }

    /// The text of a setting that is a string or number.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.atom()
    }

    fn assign(&mut self, name: String, value: Value) {
        self.settings.push((name, value));
    }

    /// `+=`: lists grow at their end, strings too. In place: a file of many
    /// additions is not to take memory for each.
    fn add(&mut self, name: String, value: Value) {
        let mut newest = self.settings.iter_mut().rev();
        let old = newest.find(|(n, _)| *n == name).map(|(_, old)| old);
        match (old, value) {
            (Some(Value::List(old)), Value::List(new)) => old.extend(new),
            (Some(Value::Atom(old)), Value::Atom(new)) => old.push_str(&new),
            (_, value) => self.assign(name, value),
        }
    }
}

/// The line does not follow the grammar.
struct Bad;

struct Parser<'a> {
    lexer: Lexer<'a>,
    peeked: Option<Token>,
    config: Config,
}

impl Parser<'_> {
    fn next(&mut self) -> Token {
        self.peeked.take().unwrap_or_else(|| self.lexer.next())
    }

    fn peek(&mut self) -> &Token {
        let lexer = &mut self.lexer;
        self.peeked.get_or_insert_with(|| lexer.next())
    }

    fn statements(&mut self) {
        loop {
            match self.next() {
                Token::End => return,
                Token::Newline | Token::Semicolon => {}
                Token::Ident(name) => {
                    if self.assignment(name).is_err() {
                        self.skip_line();
                    }
                }
                other => {
                    self.peeked = Some(other);
                    self.skip_line();
                }
            }
        }
    }

    fn assignment(&mut self, name: String) -> Result<(), Bad> {
        let add = match self.next() {
            Token::Assign => false,
            Token::Add => true,
            other => {
                self.peeked = Some(other);
                return Err(Bad);
            }
        };
        let value = self.value(0)?;
        match self.peek() {
            Token::Newline | Token::Semicolon | Token::End => {}
            _ => return Err(Bad),
        }
        if add {
            self.config.add(name, value);
        } else {
            self.config.assign(name, value);
        }
        Ok(())
    }

    fn value(&mut self, depth: u32) -> Result<Value, Bad> {
        match self.next() {
            Token::Atom(text) => Ok(Value::Atom(text)),
            Token::Open if depth < MAX_DEPTH => self.list(depth + 1),
            other => {
                self.peeked = Some(other);
                Err(Bad)
            }
        }
    }

    /// The rest of a list whose bracket was read. A comma may end it.
    fn list(&mut self, depth: u32) -> Result<Value, Bad> {
        let mut values = Vec::new();
        loop {
            self.newlines();
            if *self.peek() == Token::Close {
                break;
            }
            values.push(self.value(depth)?);
            self.newlines();
            match self.peek() {
                Token::Comma => drop(self.next()),
                Token::Close => break,
                _ => return Err(Bad),
            }
        }
        self.next();
        Ok(Value::List(values))
    }

    fn newlines(&mut self) {
        while *self.peek() == Token::Newline {
            self.next();
        }
    }

    /// Gives the line up.
    fn skip_line(&mut self) {
        let line = self.lexer.line();
        self.config.bad_line.get_or_insert(line);
        while !matches!(self.peek(), Token::Newline | Token::End) {
            self.next();
        }
    }
}
