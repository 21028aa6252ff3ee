//! Animations of pictures: GIF, APNG, or MP4 by the program `ffmpeg`.

use std::ffi::OsString;
use std::io::{Error, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::files::{FileError, failed, parent, sync_folder, write_atomically};
use crate::picture::Picture;

type Result<T, E = FileError> = std::result::Result<T, E>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// 256 colours per picture, times in hundredths of a second.
    Gif,
    /// All colours.
    Apng,
    /// The smallest; needs `ffmpeg`.
    Mp4,
}

impl Format {
    /// The format that a file's ending stands for.
    pub fn of(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "gif" => Some(Format::Gif),
            "png" | "apng" => Some(Format::Apng),
            "mp4" => Some(Format::Mp4),
            _ => None,
        }
    }

    /// Whether this machine can write it.
    pub fn is_available(self) -> bool {
        let found =
            || Command::new("ffmpeg").arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        self != Format::Mp4 || found().is_ok_and(|status| status.success())
    }
}

/// Seconds per picture, as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub seconds: u16,
    pub pictures: u16,
}

impl Pace {
    /// The unit of GIFs.
    fn hundredths(self) -> u16 {
        let (seconds, pictures) = (u32::from(self.seconds), u32::from(self.pictures.max(1)));
        u16::try_from((100 * seconds + pictures / 2) / pictures).unwrap_or(u16::MAX)
    }
}

/// An animation in the making, which repeats. It holds its pictures compressed: a long game would fill the memory otherwise.
pub struct Animation {
    path: PathBuf,
    format: Format,
    pace: Pace,
    /// Width and height of all pictures, and what they are written to; none before the first.
    encoder: Option<((usize, usize), Encoder)>,
}

enum Encoder {
    Gif(gif::Encoder<Vec<u8>>),
    Apng(Apng),
    Mp4(Mp4),
}

impl Animation {
    /// The format is that of the path's ending, or GIF.
    pub fn new(path: &Path, pace: Pace) -> Animation {
        Animation { path: path.into(), format: Format::of(path).unwrap_or(Format::Gif), pace, encoder: None }
    }

    /// All pictures have the size of the first.
    pub fn add(&mut self, picture: &Picture) -> Result<()> {
        let Animation { path, format, pace, encoder } = self;
        let unwritable = |reason: String| failed("write", path)(Error::other(reason));
        let size @ (width, height) = picture.size();
        let (first, encoder) = match encoder {
            Some(encoder) => encoder,
            none => {
                let encoder = match format {
                    Format::Gif => Encoder::Gif(start_gif(width, height).map_err(unwritable)?),
                    Format::Apng => Encoder::Apng(Apng::default()),
                    Format::Mp4 => Encoder::Mp4(Mp4::start(path, size, *pace)?),
                };
                none.insert((size, encoder))
            }
        };
        if *first != size {
            let reason =
                format!("a picture of {width} x {height} pixels follows one of {} x {}", first.0, first.1);
            return Err(unwritable(reason));
        }
        match encoder {
            Encoder::Gif(encoder) => {
                // They fit, as the first did.
                let mut frame = gif::Frame::from_rgb_speed(width as u16, height as u16, picture.rgb(), 10);
                frame.delay = pace.hundredths();
                encoder.write_frame(&frame).map_err(|e| unwritable(e.to_string()))
            }
            Encoder::Apng(apng) => {
                apng.add(&picture.to_png().map_err(|e| unwritable(e.to_string()))?);
                Ok(())
            }
            Encoder::Mp4(mp4) => mp4.add(picture.rgb()),
        }
    }

    /// Writes the file, unless there was no picture.
    pub fn write(self) -> Result<()> {
        let Animation { path, pace, encoder, .. } = self;
        match encoder {
            None => Ok(()),
            Some((_, Encoder::Gif(encoder))) => {
                let bytes = encoder.into_inner().map_err(|e| failed("write", &path)(Error::other(e)))?;
                write_atomically(&path, &bytes)
            }
            Some((size, Encoder::Apng(apng))) => write_atomically(&path, &apng.to_bytes(size, pace)),
            Some((_, Encoder::Mp4(mp4))) => mp4.finish(),
        }
    }
}

fn start_gif(width: usize, height: usize) -> Result<gif::Encoder<Vec<u8>>, String> {
    let (Ok(wide), Ok(high)) = (u16::try_from(width), u16::try_from(height)) else {
        return Err(format!(
            "{width} x {height} pixels are too many for a GIF, which has at most 65535 each way: draw less"
        ));
    };
    let mut encoder = gif::Encoder::new(Vec::new(), wide, high, &[]).map_err(|e| e.to_string())?;
    encoder.set_repeat(gif::Repeat::Infinite).map_err(|e| e.to_string())?;
    Ok(encoder)
}

/// A PNG with several pictures, whose number must be known at its beginning: they are kept as the PNGs that they would be alone.
#[derive(Default)]
struct Apng {
    /// The compressed pixels of each.
    pictures: Vec<Vec<u8>>,
}

impl Apng {
    fn add(&mut self, mut png: &[u8]) {
        let mut pixels = Vec::new();
        // Behind the signature: length, name, data and checksum of each chunk.
        png = png.get(8..).unwrap_or_default();
        while let Some((length, rest)) = png.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let (Some(name), Some(data)) = (rest.get(..4), rest.get(4..4 + length)) else { break };
            if name == b"IDAT" {
                pixels.extend_from_slice(data);
            }
            png = rest.get(8 + length..).unwrap_or_default();
        }
        self.pictures.push(pixels);
    }

    fn to_bytes(&self, (width, height): (usize, usize), pace: Pace) -> Vec<u8> {
        let size = [(width as u32).to_be_bytes(), (height as u32).to_be_bytes()].concat();
        let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
        // Eight bits each of red, green and blue.
        chunk(&mut bytes, b"IHDR", &[&size[..], &[8, 2, 0, 0, 0]]);
        // Repeats for ever.
        chunk(&mut bytes, b"acTL", &[&(self.pictures.len() as u32).to_be_bytes(), &[0; 4]]);
        let mut numbers = (0u32..).map(u32::to_be_bytes);
        let mut number = || numbers.next().unwrap_or_default();
        for (i, pixels) in self.pictures.iter().enumerate() {
            // At the upper left corner, in place of the picture before.
            let times = [pace.seconds.to_be_bytes(), pace.pictures.to_be_bytes()].concat();
            chunk(&mut bytes, b"fcTL", &[&number(), &size, &[0; 8], &times, &[0, 0]]);
            match i {
                0 => chunk(&mut bytes, b"IDAT", &[pixels]),
                _ => chunk(&mut bytes, b"fdAT", &[&number(), pixels]),
            }
        }
        chunk(&mut bytes, b"IEND", &[]);
        bytes
    }
}

fn chunk(png: &mut Vec<u8>, name: &[u8; 4], data: &[&[u8]]) {
    let data = data.concat();
    png.extend((data.len() as u32).to_be_bytes());
    let start = png.len();
    png.extend(name);
    png.extend(data);
    png.extend(crc32fast::hash(&png[start..]).to_be_bytes());
}

/// A video that `ffmpeg` is writing. It appears under its name when it is finished; dropped before, it leaves nothing behind.
struct Mp4 {
    path: PathBuf,
    partial: PathBuf,
    /// `None` once it has ended.
    ffmpeg: Option<Child>,
}

impl Mp4 {
    fn start(path: &Path, (width, height): (usize, usize), pace: Pace) -> Result<Mp4> {
        if path.exists() && !path.is_file() {
            return Err(failed("write", path)(Error::other("it is not a regular file")));
        }
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".partial");
        let partial = path.with_file_name(name);
        // Names may look like options or protocols.
        let mut target = OsString::from("file:");
        target.push(&partial);
        let (size, rate) = (format!("{width}x{height}"), format!("{}/{}", pace.pictures, pace.seconds));
        let mut command = Command::new("ffmpeg");
        command.args(["-hide_banner", "-loglevel", "error", "-nostats", "-y"]);
        command.args([
            "-f",
            "rawvideo",
            "-pixel_format",
            "rgb24",
            "-video_size",
            &size,
            "-framerate",
            &rate,
            "-i",
            "-",
        ]);
        // Most players want even sizes and colours at half the resolution.
        command.args([
            "-vf",
            "pad=ceil(iw/2)*2:ceil(ih/2)*2",
            "-pix_fmt",
            "yuv420p",
            "-movflags",
            "+faststart",
        ]);
        command.args(["-f", "mp4"]).arg(target);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let ffmpeg =
            child.map_err(|e| failed("write", path)(Error::other(format!("cannot start ffmpeg: {e}"))))?;
        Ok(Mp4 { path: path.into(), partial, ffmpeg: Some(ffmpeg) })
    }

    fn add(&mut self, pixels: &[u8]) -> Result<()> {
        let input = self.ffmpeg.as_mut().and_then(|ffmpeg| ffmpeg.stdin.as_mut());
        match input.map_or(Ok(()), |input| input.write_all(pixels)) {
            Ok(()) => Ok(()),
            // It has ended, and says why.
            Err(error) => self.end().and(Err(failed("write", &self.path)(error))),
        }
    }

    fn finish(mut self) -> Result<()> {
        self.end()?;
        let file = std::fs::File::open(&self.partial).and_then(|file| file.sync_all());
        let renamed = file.and_then(|()| std::fs::rename(&self.partial, &self.path));
        renamed.map_err(failed("write", &self.path))?;
        sync_folder(parent(&self.path))
    }

    /// Waits for the program.
    fn end(&mut self) -> Result<()> {
        let Some(ffmpeg) = self.ffmpeg.take() else { return Ok(()) };
        let ended = ffmpeg.wait_with_output().map_err(failed("write", &self.path))?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        let said = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        Err(failed("write", &self.path)(Error::other(format!("ffmpeg failed ({}): {said}", ended.status))))
    }
}

impl Drop for Mp4 {
    fn drop(&mut self) {
        if let Some(mut ffmpeg) = self.ffmpeg.take() {
            let _ = ffmpeg.kill();
            let _ = ffmpeg.wait();
        }
        // There is none after it was finished.
        let _ = std::fs::remove_file(&self.partial);
    }
}

/// Writes an animation that repeats.
pub fn write_animation(pictures: impl IntoIterator<Item = Picture>, pace: Pace, path: &Path) -> Result<()> {
    let mut animation = Animation::new(path, pace);
    for picture in pictures {
        animation.add(&picture)?;
    }
    animation.write()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::BufReader;

    use super::*;
    use crate::picture::{Cell, Row};
    use crate::testing::Scratch;

    const PACE: Pace = Pace { seconds: 1, pictures: 15 };

    /// Three pictures that differ.
    fn pictures() -> Vec<Picture> {
        let cell = |i: u8| Cell { frame: (0..48).map(|j| j * i).collect(), ..Cell::default() };
        Picture::animation(&[Row::new("one", vec![cell(1), cell(3), cell(5)])], 4).collect()
    }

    #[test]
    fn endings_stand_for_formats_and_paces_are_rounded() {
        let of = |name: &str| Format::of(Path::new(name));
        assert_eq!(
            ["a.gif", "a.PNG", "b/a.apng"].map(of),
            [Format::Gif, Format::Apng, Format::Apng].map(Some)
        );
        assert_eq!(["a.mp4", "a.avi", "gif"].map(of), [Some(Format::Mp4), None, None]);
        let hundredths = |pictures: u16| Pace { seconds: 1, pictures }.hundredths();
        assert_eq!([1, 10, 15, 30, 50].map(hundredths), [100, 10, 7, 3, 2]);
    }

    #[test]
    fn a_gif_has_its_pictures_and_times() {
        let scratch = Scratch::new("gif");
        let (path, pictures) = (scratch.0.join("a.gif"), pictures());
        write_animation(pictures.clone(), PACE, &path).unwrap();
        let mut reader = gif::DecodeOptions::new().read_info(File::open(&path).unwrap()).unwrap();
        let mut frames = 0;
        while let Some(frame) = reader.read_next_frame().unwrap() {
            assert_eq!((usize::from(frame.width), usize::from(frame.height)), pictures[0].size());
            assert_eq!(frame.delay, 7);
            frames += 1;
        }
        assert_eq!(frames, 3);
        // What cannot be drawn leaves the old picture where it is.
        let wide = Picture::blank(70_000, 1);
        let error = write_animation([wide], PACE, &path).unwrap_err().to_string();
        assert!(error.contains("70000 x 1 pixels are too many"), "{error}");
        let error = write_animation([pictures[0].clone(), Picture::blank(3, 1)], PACE, &path).unwrap_err();
        assert!(error.to_string().contains("a picture of 3 x 1 pixels follows one of "), "{error}");
        assert!(gif::DecodeOptions::new().read_info(File::open(&path).unwrap()).is_ok());
    }

    #[test]
    fn an_apng_has_all_pictures_to_the_bit() {
        let scratch = Scratch::new("apng");
        let (path, pictures) = (scratch.0.join("a.png"), pictures());
        write_animation(pictures.clone(), PACE, &path).unwrap();
        let mut reader = png::Decoder::new(BufReader::new(File::open(&path).unwrap())).read_info().unwrap();
        let control = reader.info().animation_control.unwrap();
        assert_eq!((control.num_frames, control.num_plays), (3, 0));
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        for picture in &pictures {
            reader.next_frame(&mut bytes).unwrap();
            let frame = reader.info().frame_control.unwrap();
            assert_eq!((frame.delay_num, frame.delay_den), (1, 15));
            assert!(bytes == picture.rgb());
        }
        assert!(reader.next_frame(&mut bytes).is_err());
    }

    /// A full disk is not kept secret.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named() {
        let scratch = Scratch::new("full");
        for name in ["full.png", "full.gif"] {
            let path = scratch.0.join(name);
            std::os::unix::fs::symlink("/dev/full", &path).unwrap();
            let error = write_animation(pictures(), PACE, &path).unwrap_err().to_string();
            assert!(error.contains("No space left on device"), "{error}");
        }
    }
}
