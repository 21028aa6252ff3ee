//! How parameters lie in memory, here and in the reference release.

use crate::layers::Layout;

impl Layout {
    /// Their shape of a parameter that has `ours`.
    pub fn reference_shape(self, ours: &[usize]) -> Vec<usize> {
        match (self, ours) {
            (Layout::Conv1x1, &[outputs, inputs]) => vec![outputs, inputs, 1, 1],
            (Layout::Conv3x3, &[outputs, 3, 3, inputs]) => vec![outputs, inputs, 3, 3],
            (Layout::ChannelWeights, &[channels]) => vec![1, channels, 1, 1],
            _ => ours.to_vec(),
        }
    }

    /// Where our element `index` stands in theirs.
    fn their_index(self, ours: &[usize], index: usize) -> usize {
        match (self, ours) {
            (Layout::Conv3x3, &[_, 3, 3, inputs]) => {
                let (input, tap, output) = (index % inputs, index / inputs % 9, index / inputs / 9);
                (output * inputs + input) * 9 + tap
            }
            (Layout::Flattened { height, width, channels }, _) => {
                let pixels = height * width;
                let (channel, pixel, row) =
                    (index % channels, index / channels % pixels, index / channels / pixels);
                (row * channels + channel) * pixels + pixel
            }
            _ => index,
        }
    }

    /// Their values in our order; `shape` is ours.
    pub fn from_reference(self, shape: &[usize], theirs: &[f32]) -> Vec<f32> {
        (0..theirs.len()).map(|i| theirs[self.their_index(shape, i)]).collect()
    }

    /// Our values in their order; `shape` is ours.
    pub fn to_reference(self, shape: &[usize], ours: &[f32]) -> Vec<f32> {
        let mut theirs = vec![0.0; ours.len()];
        for (i, value) in ours.iter().enumerate() {
            theirs[self.their_index(shape, i)] = *value;
        }
        theirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let flattened = Layout::Flattened { height: 2, width: 3, channels: 4 };
        let cases: [(Layout, &[usize], &[usize]); 4] = [
            (Layout::Same, &[2, 5], &[2, 5]),
            (Layout::Conv1x1, &[2, 5], &[2, 5, 1, 1]),
            (Layout::Conv3x3, &[2, 3, 3, 5], &[2, 5, 3, 3]),
            (flattened, &[2, 24], &[2, 24]),
        ];
        for (layout, ours, theirs) in cases {
            assert_eq!(layout.reference_shape(ours), theirs);
            let values: Vec<f32> = (0..ours.iter().product::<usize>()).map(|i| i as f32).collect();
            let there = layout.to_reference(ours, &values);
            assert_eq!(layout.from_reference(ours, &there), values);
        }
        // Output 1, tap (0, 2), input 3 of a 3x3 convolution.
        let values: Vec<f32> = (0..90).map(|i| i as f32).collect();
        let there = Layout::Conv3x3.to_reference(&[2, 3, 3, 5], &values);
        assert_eq!(there[((5 + 3) * 3) * 3 + 2], values[((3) * 3 + 2) * 5 + 3]);
        // Row 1, pixel (1, 2), channel 3 of a flattened image.
        let values: Vec<f32> = (0..48).map(|i| i as f32).collect();
        let there = flattened.to_reference(&[2, 24], &values);
        assert_eq!(there[24 + 3 * 6 + 5], values[24 + 5 * 4 + 3]);
    }
}
