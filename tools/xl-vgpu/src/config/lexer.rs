//! Tokens of a configuration.

use std::iter::Peekable;
use std::str::Chars;

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A setting's name.
    Ident(String),
    /// A string without its quotes, or a number.
    Atom(String),
    /// `=`
    Assign,
    /// `+=`
    Add,
    /// `[`
    Open,
    /// `]`
    Close,
    /// `,`
    Comma,
    /// `;`
    Semicolon,
    /// The end of a line, with the comment before it.
    Newline,
    /// The end of the text.
    End,
    /// Anything else.
    Bad,
}

/// Cuts a text into tokens.
pub struct Lexer<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
}

impl<'a> Lexer<'a> {
    /// Starts at the beginning of `text`.
    pub fn new(text: &'a str) -> Self {
        Self {
            rest: text.chars().peekable(),
            line: 1,
        }
    }

    /// The number of the line reached.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The next token; [`Token::End`] again and again at the end.
    pub fn next(&mut self) -> Token {
        // A carriage return is no blank to xl; files with it still mean what
        // they say to us, and xl tells the user.
        while self
            .rest
            .next_if(|c| matches!(c, ' ' | '\t' | '\r'))
            .is_some()
        {}
        let Some(c) = self.rest.next() else {
            return Token::End;
        };
        match c {
            '\n' => self.newline(),
            '#' => {
                while self.rest.next_if(|c| *c != '\n').is_some() {}
                match self.rest.next() {
                    Some(_) => self.newline(),
                    None => Token::End,
                }
            }
            ',' => Token::Comma,
            '[' => Token::Open,
            ']' => Token::Close,
            ';' => Token::Semicolon,
            '=' => Token::Assign,
            '+' if self.rest.next_if_eq(&'=').is_some() => Token::Add,
            '\'' | '"' => self.string(c),
            'a'..='z' => Token::Ident(self.word(c, |c| {
                c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_')
            })),
            '0'..='9' => {
                Token::Atom(self.word(c, |c| c.is_ascii_digit() || matches!(c, 'a'..='f' | 'x')))
            }
            _ => Token::Bad,
        }
    }

    fn newline(&mut self) -> Token {
        self.line += 1;
        Token::Newline
    }

    fn word(&mut self, first: char, belongs: impl Fn(char) -> bool) -> String {
        let mut word = String::from(first);
        while let Some(c) = self.rest.next_if(|&c| belongs(c)) {
            word.push(c);
        }
        word
    }

    fn string(&mut self, quote: char) -> Token {
        let mut text = String::new();
        loop {
            // A string ends on its line.
            let Some(c) = self.rest.next_if(|c| *c != '\n') else {
                return Token::Bad;
            };
            match c {
                '\\' => match self.escape() {
                    Some(c) => text.push(c),
                    None => return Token::Bad,
                },
                c if c == quote => return Token::Atom(text),
                c => text.push(c),
            }
        }
    }

    /// What a backslash stands for. Octal and hexadecimal ones are left to
    /// xl (Xen `tools/libs/util/libxlu_cfg.c:xlu__cfgl_dequote`).
    fn escape(&mut self) -> Option<char> {
        Some(match self.rest.next_if(|c| *c != '\n')? {
            c @ ('"' | '\'' | '\\') => c,
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            _ => return None,
        })
    }
}
