//! Finds the few faults that matter among many (delta debugging; Zeller and Hildebrandt, "Simplifying and isolating
//! failure-inducing input", 2002).

/// Returns a part of `all`, in its order, with which `fails` is still true, and from which no chunk could be left out. `fails` was
/// true of all. It may be asked often, and of the same part again.
pub(crate) fn shrink<T: Clone>(all: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let (mut left, mut chunks) = (all, 2);
    while left.len() >= 2 {
        let size = left.len().div_ceil(chunks);
        let without = |at: usize| -> Vec<T> {
            let chunk = at * size..(at + 1) * size;
            let others = left.iter().enumerate().filter(|(index, _)| !chunk.contains(index));
            others.map(|(_, one)| one.clone()).collect()
        };
        let fewer = (0..left.len().div_ceil(size)).map(without).find(|some| fails(some));
        match fewer {
            Some(some) => (left, chunks) = (some, (chunks - 1).max(2)),
            None if size == 1 => break,
            None => chunks = (chunks * 2).min(left.len()),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_left() {
        for matters in [vec![0], vec![99], vec![3, 4], vec![7, 50, 98]] {
            let mut asked = 0;
            let left = shrink((0..100).collect(), |some| {
                asked += 1;
                matters.iter().all(|one| some.contains(one))
            });
            assert_eq!(left, matters);
            assert!(asked < 100, "{asked} of {matters:?}");
        }
    }

    #[test]
    fn what_fails_without_anything_is_left_with_one() {
        assert_eq!(shrink(vec![1, 2, 3], |_| true).len(), 1);
    }
}
