package etcd_test

import (
	"testing"

	"knarr/controlplane/etcd"
)

// alone starts a member without others.
func alone(t *testing.T, dir string) *etcd.Member {
	t.Helper()
	m, err := etcd.Start(t.Context(), etcd.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestRestartKeepsWhatWasAcknowledged(t *testing.T) {
	dir := t.TempDir()
	m := alone(t, dir)
	if _, err := m.Client().Put(t.Context(), "/a", "1"); err != nil {
		t.Fatal(err)
	}
	m.Close()
	m = alone(t, dir)
	defer m.Close()
	resp, err := m.Client().Get(t.Context(), "/a")
	if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "1" {
		t.Fatalf("got %v, %v", resp, err)
	}
}

func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		m, err := etcd.Start(b.Context(), etcd.Config{Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		m.Close()
	}
}

// Newest is that of the last acknowledged write, also right after a start.
func TestNewest(t *testing.T) {
	dir := t.TempDir()
	var last int64
	for range 3 {
		m := alone(t, dir)
		if got, alone := m.Newest(); !alone || got < last {
			t.Errorf("after a start revision %d is the newest, alone %v; %d was acknowledged", got, alone, last)
		}
		for range 100 {
			resp, err := m.Client().Put(t.Context(), "/a", "1")
			if err != nil {
				t.Fatal(err)
			}
			last = resp.Header.Revision
			if got, alone := m.Newest(); !alone || got != last {
				t.Fatalf("revision %d is the newest, alone %v; %d was acknowledged", got, alone, last)
			}
		}
		m.Close()
	}
}
