package etcd_test

import (
	"testing"

	"knarr/controlplane/etcd"
)

// A downgraded member goes on, and so does the next start. That etcd 3.6 does is
// shown by `make swap`.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m, err := etcd.Start(t.Context(), etcd.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Downgrade(t.Context(), "3.2"); err == nil {
		t.Error("downgraded to a version too old")
	}
	for range 2 { // the second finds it done
		if err := m.Downgrade(t.Context(), "3.6"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Client().Put(t.Context(), "/a", "1"); err != nil {
		t.Fatal(err)
	}
	m.Close()
	m, err = etcd.Start(t.Context(), etcd.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if resp, err := m.Client().Get(t.Context(), "/a"); err != nil || len(resp.Kvs) != 1 {
		t.Errorf("got %v, %v", resp, err)
	}
}
