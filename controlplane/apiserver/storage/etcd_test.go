package storage_test

import (
	"testing"

	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/storage/storagetest"
	"knarr/controlplane/etcd"
)

func TestEtcd(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		m, err := etcd.Start(t.Context(), etcd.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		s := storage.NewEtcd(m.Client())
		t.Cleanup(func() { s.Close(); m.Close() })
		return s
	})
}
