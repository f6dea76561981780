package storageversion

import (
	"testing"
	"testing/synctest"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
)

// TestRecord: what servers say is kept by server; whether they agree, and since when,
// follows.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, start := &apiserverinternalv1alpha1.StorageVersion{}, time.Now()
		v.Generation = 3
		for i, step := range []struct {
			server, version, common, status string
			entries                         int
			since                           time.Duration
		}{
			{"a", "apps/v1", "apps/v1", "True", 1, 0},
			{"a", "apps/v1", "apps/v1", "True", 1, 0},
			{"b", "apps/v1", "apps/v1", "True", 2, 0},
			{"b", "apps/v2", "", "False", 2, 3 * time.Hour},
			{"a", "apps/v1", "", "False", 2, 3 * time.Hour},
			{"a", "apps/v2", "apps/v2", "True", 2, 5 * time.Hour},
		} {
			Record(v, apiserverinternalv1alpha1.ServerStorageVersion{APIServerID: step.server, EncodingVersion: step.version})
			common := ""
			if c := v.Status.CommonEncodingVersion; c != nil {
				common = *c
			}
			c := v.Status.Conditions
			if common != step.common || len(v.Status.StorageVersions) != step.entries || len(c) != 1 || string(c[0].Status) != step.status ||
				!c[0].LastTransitionTime.Time.Equal(start.Add(step.since)) || c[0].ObservedGeneration != 3 {
				t.Errorf("step %d: common version %q, %+v", i, common, v.Status)
			}
			time.Sleep(time.Hour)
		}
		// The only server left stores another version than both did.
		v.Status.StorageVersions = []apiserverinternalv1alpha1.ServerStorageVersion{{APIServerID: "a", EncodingVersion: "apps/v3"}}
		Conclude(v)
		if c := v.Status.Conditions[0]; *v.Status.CommonEncodingVersion != "apps/v3" || !c.LastTransitionTime.Time.Equal(start.Add(6*time.Hour)) {
			t.Errorf("another common version: %+v", v.Status)
		}
		v.Status.StorageVersions = nil
		Conclude(v)
		if c := v.Status.Conditions[0]; v.Status.CommonEncodingVersion != nil || c.Reason != "CommonEncodingVersionUnset" {
			t.Errorf("no server: %+v", v.Status)
		}
	})
}
