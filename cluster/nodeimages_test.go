package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"knarr/node/containerruntime"
)

// TestSharedProgress: many who ask at once are one measurement, and who does not want to wait
// any more does not, whatever the others do.
func TestSharedProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		measured := 0
		progress := sharedProgress(func(ctx context.Context) ([]containerruntime.Pull, error) {
			measured++
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return []containerruntime.Pull{{Repository: "reg.test/a", Done: 1, Total: 2}}, nil
		})
		answers := make(chan bool, 100)
		for range 100 {
			go func() { _, _, ok := progress(t.Context(), "reg.test/a:1"); answers <- ok }()
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, _, ok := progress(short, "reg.test/a:1"); ok || time.Since(began) > time.Second {
			t.Errorf("answered %v after %v", ok, time.Since(began))
		}
		for range 100 {
			if !<-answers {
				t.Error("not found")
			}
		}
		if measured != 1 {
			t.Errorf("%d measurements", measured)
		}
		if _, _, ok := progress(t.Context(), "reg.test/b:1"); ok {
			t.Error("another image is found")
		}
		// One that is given up is nobody's answer.
		time.Sleep(progressAge)
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, ok := progress(short, "reg.test/a:1"); ok {
			t.Error("given up and found")
		}
		if done, total, ok := progress(t.Context(), "reg.test/a:1"); !ok || done != 1 || total != 2 {
			t.Errorf("then %d of %d, %v", done, total, ok)
		}
	})
}
