//! What stands on the screen, as text with styles: no terminal here.

use super::columns::{self, Column};
use super::order::Order;
use super::rates::{EngineRates, Rates};

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As any text.
    Plain,
    /// A table's heading.
    Heading,
    /// A part of a bar that is not busy.
    Dim,
    /// Busy up to a half.
    Low,
    /// Busy up to nine tenths.
    Middle,
    /// Busier.
    High,
    /// Something is wrong.
    Alarm,
}

/// A line of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(pub Vec<(Style, String)>);

impl Line {
    /// A line of one style.
    fn of(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    fn push(&mut self, style: Style, text: impl Into<String>) {
        self.0.push((style, text.into()));
    }

    /// The line's first `width` characters. Control characters, which could
    /// come in a name, become question marks.
    fn cut(self, width: usize) -> Self {
        let mut room = width;
        let mut cut = Self::default();
        for (style, text) in self.0 {
            let shown = |c: char| if c.is_control() { '?' } else { c };
            let text: String = text.chars().take(room).map(shown).collect();
            room -= text.chars().count();
            cut.push(style, text);
        }
        cut
    }

    /// Its text.
    #[cfg(test)]
    pub fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }
}

/// What is to be shown, and how.
pub struct View<'a> {
    /// What happened; none before there are two snapshots.
    pub rates: Option<&'a Rates>,
    /// What is wrong, if anything.
    pub trouble: Option<&'a str>,
    /// How vGPUs are sorted.
    pub order: Order,
    /// vGPUs above the first that is shown.
    pub scroll: usize,
    /// Characters in a line.
    pub width: usize,
    /// Lines.
    pub height: usize,
}

/// Characters of an engine's bar at most.
const BAR: usize = 40;

impl View<'_> {
    /// The lines, as many as there is room for, each of `width` characters
    /// at most.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = vec![self.title()];
        if let Some(trouble) = self.trouble {
            lines.push(Line::of(Style::Alarm, format!("{trouble}; trying again")));
        }
        match self.rates {
            None if self.trouble.is_none() => lines.push(Line::of(Style::Plain, "looking")),
            None => {}
            Some(rates) => {
                lines.extend(rates.engines.iter().map(|e| self.engine(e)));
                lines.push(Line::default());
                let used = lines.len();
                lines.extend(self.table(rates, self.height.saturating_sub(used)));
            }
        }
        lines.truncate(self.height);
        lines.into_iter().map(|l| l.cut(self.width)).collect()
    }

    /// How far the list can be scrolled.
    pub fn most_scroll(&self) -> usize {
        let engines = self.rates.map_or(0, |r| r.engines.len());
        let above = 3 + engines + usize::from(self.trouble.is_some());
        let rows = self.height.saturating_sub(above).max(1);
        self.rates.map_or(0, |r| r.vgpus.len().saturating_sub(rows))
    }

    fn title(&self) -> Line {
        let vgpus = self.rates.map_or(0, |r| r.vgpus.len());
        let seconds = self.rates.map_or(0.0, |r| r.seconds);
        let order = self.order.name();
        let text = format!(
            "vgpuctl top   {vgpus} vGPUs   {seconds:.1} s   by {order} (b d n r s w)   q quits"
        );
        Line::of(Style::Plain, text)
    }

    fn engine(&self, e: &EngineRates) -> Line {
        let mut line = Line::of(Style::Plain, format!("{:<6}", e.name));
        if let Some(reason) = &e.dead {
            line.push(Style::Alarm, format!("out of use: {reason}"));
            return line;
        }
        let bar = self.width.saturating_sub(60).clamp(10, BAR);
        let full = filled(e.busy_percent, bar);
        line.push(Style::Plain, "[");
        line.push(heat(e.busy_percent), "|".repeat(full));
        line.push(Style::Dim, " ".repeat(bar - full));
        line.push(Style::Plain, format!("] {:5.1}%", e.busy_percent));
        let domain = |id: Option<u64>| id.map_or("-".into(), |id| format!("dom {id}"));
        let text = format!(
            "  runs {:<8} owner {:<8} waiting {:<3} switches {:.0}/s, handed over {:.0}/s, {:.1}%",
            domain(e.running),
            domain(e.owner),
            e.waiting,
            e.switches_per_second,
            e.handovers_per_second,
            e.switch_percent,
        );
        line.push(Style::Plain, text);
        if e.resets > 0 {
            line.push(Style::Alarm, format!("  resets {}", e.resets));
        }
        line
    }

    fn table(&self, rates: &Rates, room: usize) -> Vec<Line> {
        let columns = columns::fitting(rates, self.width);
        let join = |cell: &dyn Fn(&Column) -> String| -> String {
            let cells: Vec<String> = columns.iter().map(cell).collect();
            cells.join(" ")
        };
        let heading = join(&Column::head);
        let width = self.width;
        let mut lines = vec![Line::of(Style::Heading, format!("{heading:<width$}"))];
        let mut vgpus = rates.vgpus.clone();
        self.order.sort(&mut vgpus);
        // The last line tells what is below.
        let rows = room.saturating_sub(1);
        let below = vgpus.len().saturating_sub(self.scroll.saturating_add(rows));
        let rows = if below > 0 {
            rows.saturating_sub(1)
        } else {
            rows
        };
        let shown = vgpus.iter().skip(self.scroll).take(rows);
        lines.extend(shown.map(|v| {
            let style = match v.state {
                vgpu_control::State::Running => Style::Plain,
                vgpu_control::State::Failed => Style::Alarm,
            };
            Line::of(style, join(&|c| c.cell(v)))
        }));
        if below > 0 {
            lines.push(Line::of(Style::Dim, format!("{} more below", below + 1)));
        }
        lines
    }
}

/// How many of a bar's `width` characters are busy.
fn filled(percent: f64, width: usize) -> usize {
    let steps = u32::try_from(width).unwrap_or(0);
    let busy = |n: &u32| f64::from(*n) * 100.0 <= percent * f64::from(steps) + 50.0;
    (1..=steps).take_while(busy).count()
}

fn heat(percent: f64) -> Style {
    if percent < 50.0 {
        Style::Low
    } else if percent < 90.0 {
        Style::Middle
    } else {
        Style::High
    }
}
