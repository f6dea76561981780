package apiserver_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/storage/encryption"
	"knarr/controlplane/apiserver/watchcache"
	"knarr/internal/apitest"
)

// TestEncryption: what is written is sealed and read back by everybody, and an
// update that changes nothing seals what was not.
func TestEncryption(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(`{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: [{resources: [secrets], providers: [
		{secretbox: {keys: [{name: a, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}, {identity: {}}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := encryption.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var store storage.Store
		s, stop := apitest.New(t, func(c *apiserver.Config) { store, c.Encryption = c.Store, keys })
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		secrets := s.Client(t).CoreV1().Secrets("default")
		seen, err := secrets.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer seen.Stop()
		made, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string][]byte{"k": []byte("hidden")}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := (<-seen.ResultChan()).Object.(*corev1.Secret); string(got.Data["k"]) != "hidden" {
			t.Errorf("watched %v", got)
		}
		const key = "/registry/secrets/default/a"
		prefix := []byte("k8s:enc:secretbox:v1:a:")
		sealed, _, err := store.Get(ctx, key)
		if err != nil || !bytes.HasPrefix(sealed.Value, prefix) || bytes.Contains(sealed.Value, []byte("hidden")) {
			t.Fatalf("stored %v, %v", sealed, err)
		}
		if same, err := secrets.Update(ctx, made, metav1.UpdateOptions{}); err != nil || same.ResourceVersion != made.ResourceVersion {
			t.Errorf("an update of nothing wrote %v, %v", same, err)
		}
		plain, _, err := encryption.New(store, keys, registry.StoredAs(watchcache.Root)).Get(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, ok, err := store.Put(ctx, key, plain.Value, plain.Revision, 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
		open, err := secrets.Get(ctx, "a", metav1.GetOptions{})
		if err != nil || string(open.Data["k"]) != "hidden" {
			t.Fatalf("not yet sealed: %v, %v", open, err)
		}
		if _, err := secrets.Update(ctx, open, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if sealed, _, err = store.Get(ctx, key); err != nil || !bytes.HasPrefix(sealed.Value, prefix) {
			t.Errorf("after an update of nothing: %v, %v", sealed, err)
		}
	})
}
