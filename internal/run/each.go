package run

import "sync/atomic"

// Each calls do for 0 to n-1, at most workers of them at once, and returns once
// all calls have returned. The result holds each call's error at its index, nil
// without one; a panic of a call is its error and keeps no other from running.
func Each(name string, workers, n int, do func(i int) error) []error {
	errs := make([]error, n)
	var next atomic.Int64
	var group Group
	for range min(workers, n) {
		group.Go(name, func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = Catch(name, func() error { return do(i) })
			}
		})
	}
	group.Wait()
	return errs
}
