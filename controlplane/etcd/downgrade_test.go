package etcd_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A downgraded member goes on, and so does the next start. That etcd 3.6 does is
// shown by `make swap`.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := alone(t, dir)
	if err := m.Downgrade(t.Context(), "3.2"); err == nil {
		t.Error("downgraded to a version too old")
	}
	for range 2 { // the second finds it done
		if err := m.Downgrade(t.Context(), "3.6"); err != nil {
			t.Fatal(err)
		}
	}
	// Data of an older etcd is raised, as here, before it is written as the older's again.
	if _, err := m.Client().Downgrade(t.Context(), clientv3.DowngradeCancel, ""); err != nil {
		t.Fatal(err)
	}
	if err := m.Downgrade(t.Context(), "3.6"); err != nil {
		t.Fatal(err)
	}
	if status, err := m.Client().Status(t.Context(), ""); err != nil || !status.DowngradeInfo.GetEnabled() || status.StorageVersion != "3.6.0" {
		t.Errorf("got %v, %v", status, err)
	}
	if _, err := m.Client().Put(t.Context(), "/a", "1"); err != nil {
		t.Fatal(err)
	}
	m.Close()
	m = alone(t, dir)
	defer m.Close()
	if resp, err := m.Client().Get(t.Context(), "/a"); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("got %v, %v", resp, err)
	}
}
