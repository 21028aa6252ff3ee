//! Times, rates and counts for people.

/// "1 game", "2 games".
pub fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A time in its two largest units: "45 s", "3 min 20 s", "2 h 5 min", "3 days 4 h", then months and years.
pub fn duration(seconds: f64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let whole = seconds.max(0.0).round() as u64;
    let two = |large: u64, name: &str, small: u64, small_name: &str| match whole % large / small {
        0 => format!("{} {name}", whole / large),
        rest => format!("{} {name} {rest} {small_name}", whole / large),
    };
    match whole {
        0..MINUTE => format!("{whole} s"),
        MINUTE..HOUR => two(MINUTE, "min", 1, "s"),
        HOUR..DAY => two(HOUR, "h", MINUTE, "min"),
        DAY..864_000 => two(DAY, if whole < 2 * DAY { "day" } else { "days" }, HOUR, "h"),
        864_000..5_184_000 => format!("{} days", whole / DAY),
        5_184_000..63_072_000 => format!("{:.0} months", whole as f64 / DAY as f64 / 30.4),
        _ => format!("{:.0} years", whole as f64 / DAY as f64 / 365.25),
    }
}

/// Bytes of "12GiB", "800M" or "1.5GB": without an i the units are powers of 1000.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "b" => 1.0,
        "mib" => 1024f64.powi(2),
        "gib" => 1024f64.powi(3),
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        _ => return Err("write a number and a unit, such as 12GiB or 800MB".into()),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number * factor < 1e15 => Ok((number * factor) as usize),
        _ => Err("write a size above 0, such as 12GiB".into()),
    }
}

/// Seconds since 1970 as date and time of day (UTC), in a form that sorts.
pub fn calendar(seconds: u64) -> String {
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hours, minutes, seconds) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year}{:02}{:02}-{hours:02}{minutes:02}{seconds:02}", month + 1, days + 1)
}

/// How fast something goes: "120/s", "17.1/s", or "2.5 s each" where one takes longer than a second.
pub fn rate(per_second: f64) -> String {
    match per_second {
        100.0.. => format!("{per_second:.0}/s"),
        1.0..100.0 => format!("{per_second:.1}/s"),
        _ if per_second <= 0.0 => String::new(),
        _ if per_second <= 0.1 => format!("{:.0} s each", 1.0 / per_second),
        _ => format!("{:.1} s each", 1.0 / per_second),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_two_units() {
        for (seconds, words) in [
            (0.2, "0 s"),
            (59.4, "59 s"),
            (60.0, "1 min"),
            (200.0, "3 min 20 s"),
            (7_500.0, "2 h 5 min"),
            (90_000.0, "1 day 1 h"),
            (86_400.0 * 3.0, "3 days"),
            (86_400.0 * 45.0, "45 days"),
            (86_400.0 * 120.0, "4 months"),
            (86_400.0 * 3653.0, "10 years"),
        ] {
            assert_eq!(duration(seconds), words);
        }
    }

    #[test]
    fn times_of_day_sort() {
        assert_eq!(calendar(0), "19700101-000000");
        assert_eq!(calendar(951_827_696), "20000229-123456");
        assert_eq!(calendar(1_767_225_599), "20251231-235959");
    }

    #[test]
    fn sizes_have_units() {
        let sizes = ["12GiB", "1.5 GB", "800m", "7B"].map(|text| parse_size(text).unwrap());
        assert_eq!(sizes, [12 << 30, 1_500_000_000, 800_000_000, 7]);
        for nonsense in ["12", "GiB", "0GiB", "-1GiB", "1e9", "1..2GiB", "12TiB", "", "9999999GiB"] {
            assert!(parse_size(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn rates_have_the_digits_that_matter() {
        let rates = [0.0, 0.02, 0.4, 1.0, 17.1185, 1234.5].map(rate);
        assert_eq!(rates, ["", "50 s each", "2.5 s each", "1.0/s", "17.1/s", "1234/s"]);
    }
}
