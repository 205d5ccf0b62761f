//! The terminal: taken over, drawn on, given back whatever happens.

use std::io::{self, IsTerminal, Stdout, Write, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, ResetColor, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};

use super::screen::{Line, Style};

/// What the user did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing, for as long as was waited.
    Nothing,
    /// The terminal's size changed.
    Resized,
    /// Wants to leave.
    Quit,
    /// A letter.
    Letter(char),
    /// So many lines down; negative for up.
    Scroll(isize),
}

/// Whether the terminal is ours.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, ours until dropped.
pub struct Terminal {
    out: Stdout,
}

impl Terminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When standard input or output is none.
    pub fn take() -> io::Result<Self> {
        if !stdout().is_terminal() || !io::stdin().is_terminal() {
            return Err(io::Error::other("standard input or output is no terminal"));
        }
        // A panic is printed where it can be read.
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let print = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                print(panic);
            }));
        });
        TAKEN.store(true, Ordering::SeqCst);
        // From here on dropping it gives the terminal back.
        let mut terminal = Self { out: stdout() };
        enable_raw_mode()?;
        execute!(terminal.out, EnterAlternateScreen, Hide)?;
        Ok(terminal)
    }

    /// Characters in a line, and lines.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn size(&self) -> io::Result<(usize, usize)> {
        let (width, height) = size()?;
        Ok((width.into(), height.into()))
    }

    /// Shows `lines` and nothing else.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        queue!(self.out, BeginSynchronizedUpdate)?;
        for (row, line) in (0..).zip(lines) {
            queue!(self.out, MoveTo(0, row))?;
            for (style, text) in &line.0 {
                look(&mut self.out, *style)?;
                queue!(self.out, Print(text))?;
            }
            look(&mut self.out, Style::Plain)?;
            queue!(self.out, Clear(ClearType::UntilNewLine))?;
        }
        let end = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        // Below the last row there is nothing to clear.
        if size().is_ok_and(|(_, height)| end < height) {
            queue!(self.out, MoveTo(0, end), Clear(ClearType::FromCursorDown))?;
        }
        queue!(self.out, EndSynchronizedUpdate)?;
        self.out.flush()
    }

    /// Waits for the user, `limit` at most.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn input(&self, limit: Duration) -> io::Result<Input> {
        if !event::poll(limit)? {
            return Ok(Input::Nothing);
        }
        let key = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => key,
            Event::Resize(..) => return Ok(Input::Resized),
            _ => return Ok(Input::Nothing),
        };
        Ok(match key.code {
            KeyCode::Char('q') | KeyCode::Esc => Input::Quit,
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                Input::Quit
            }
            KeyCode::Char(c) => Input::Letter(c),
            KeyCode::Up => Input::Scroll(-1),
            KeyCode::Down => Input::Scroll(1),
            KeyCode::PageUp => Input::Scroll(-10),
            KeyCode::PageDown => Input::Scroll(10),
            KeyCode::Home => Input::Scroll(isize::MIN),
            KeyCode::End => Input::Scroll(isize::MAX),
            _ => Input::Nothing,
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, once.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // It fails when the terminal is gone, and then nothing is left to do.
        let _ = execute!(stdout(), ResetColor, Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

fn look(out: &mut Stdout, style: Style) -> io::Result<()> {
    queue!(out, SetAttribute(Attribute::Reset), ResetColor)?;
    match style {
        Style::Plain => Ok(()),
        Style::Heading => queue!(out, SetAttribute(Attribute::Reverse)),
        Style::Dim => queue!(out, SetAttribute(Attribute::Dim)),
        Style::Low => queue!(out, SetForegroundColor(Color::Green)),
        Style::Middle => queue!(out, SetForegroundColor(Color::Yellow)),
        Style::High | Style::Alarm => queue!(out, SetForegroundColor(Color::Red)),
    }
}
