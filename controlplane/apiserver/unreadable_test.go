package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/storage"
	"knarr/controlplane/apiserver/storage/encryption"
	"knarr/internal/apitest"
	"knarr/internal/features"
)

// sealedBadly is a value of a key that nobody has.
const sealedBadly = "k8s:enc:secretbox:v1:gone:????????????????????????????????????????????"

func secretboxKeys(t *testing.T) *encryption.Keys {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(`{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: [{resources: [secrets], providers: [
		{secretbox: {keys: [{name: a, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}, {identity: {}}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := encryption.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

const noKey = "no matching key was found for the provided Secretbox transformer"

// TestUnreadable: a value that nobody can read hides no other, whether it was
// there before the server or came later, and is seen once it can be read.
func TestUnreadable(t *testing.T) {
	keys := secretboxKeys(t)
	for _, early := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			var store storage.Store
			const key = "/registry/secrets/bad/one"
			put := func() {
				if _, _, ok, err := store.Put(ctx, key, []byte(sealedBadly), 0, 0); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			s, stop := apitest.New(t, func(c *apiserver.Config) {
				store, c.Encryption = c.Store, keys
				if early {
					put()
				}
			})
			defer stop()
			client := s.Client(t)
			all, good := client.CoreV1().Secrets(""), client.CoreV1().Secrets("default")
			if _, err := good.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if !early {
				seen, err := all.Watch(ctx, metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				put()
				for e := range seen.ResultChan() {
					if o, ok := e.Object.(*corev1.Secret); ok && o.Name == "one" {
						t.Errorf("watched %v", e)
					}
				}
			}
			refused := func(what string, err error, want string) {
				t.Helper()
				if !apierrors.IsInternalError(err) || !strings.HasSuffix(err.Error(), want) {
					t.Errorf("%s: %v", what, err)
				}
			}
			page, list := metav1.ListOptions{Limit: 500}, "Internal error occurred: unable to transform key \""+key+"\": "+noKey
			_, err := all.List(ctx, page)
			refused("list", err, list)
			refused("delete of all", client.CoreV1().Secrets("bad").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}), list)
			for _, from := range []string{"/api/v1/secrets", "/api/v1/namespaces/default/secrets", "/api/v1/secrets?resourceVersion=0", "/api/v1/namespaces/default/secrets?watch=1",
				"/api/v1/namespaces/default/secrets?limit=500&fieldSelector=metadata.name%3Dtwo"} {
				err := client.CoreV1().RESTClient().Get().RequestURI(from).MaxRetries(0).Do(ctx).Error()
				const busy = "storage is (re)initializing: failed to list *core.Secret: unable to transform key \"" + key + "\": " + noKey
				if !apierrors.IsTooManyRequests(err) || err.Error() != busy {
					t.Errorf("%s: %v", from, err)
				}
			}
			bad := client.CoreV1().Secrets("bad")
			_, err = bad.Get(ctx, "one", metav1.GetOptions{})
			refused("get", err, "Internal error occurred: "+noKey)
			_, err = bad.Update(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "bad"}}, metav1.UpdateOptions{})
			refused("update", err, "Internal error occurred: "+noKey)
			refused("delete", bad.Delete(ctx, "one", metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}), "Internal error occurred: "+noKey)
			if two, err := good.Get(ctx, "two", metav1.GetOptions{}); err != nil || two.Name != "two" {
				t.Errorf("another one: %v", err)
			}
			if l, err := good.List(ctx, page); err != nil || len(l.Items) != 1 {
				t.Errorf("others: %v, %v", l, err)
			}
			kv, _, err := store.Get(ctx, key)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, ok, err := store.Delete(ctx, key, kv.Revision); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if l, err := all.List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 1 {
				t.Errorf("when it is gone: %v, %v", l, err)
			}
		})
	}
}

// TestUndecodable: what upstream says of a value that is no object, recorded.
func TestUndecodable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		s, stop := apitest.New(t, func(c *apiserver.Config) {
			if _, _, ok, err := c.Store.Put(ctx, "/registry/secrets/bad/one", []byte("k8s\x00rubbish"), 0, 0); !ok || err != nil {
				t.Fatal(ok, err)
			}
		})
		defer stop()
		client := s.Client(t).CoreV1().RESTClient()
		for from, want := range map[string]string{
			"/api/v1/secrets":                              "429 TooManyRequests storage is (re)initializing: failed to list *core.Secret: unexpected EOF",
			"/api/v1/secrets?limit=1":                      "500  unexpected EOF",
			"/api/v1/namespaces/bad/secrets/one":           "500  unexpected EOF",
			"/api/v1/namespaces/default/secrets?limit=500": "",
		} {
			got := ""
			var status *apierrors.StatusError
			if errors.As(client.Get().RequestURI(from).MaxRetries(0).Do(ctx).Error(), &status) {
				got = fmt.Sprint(status.ErrStatus.Code, " ", status.ErrStatus.Reason, " ", status.ErrStatus.Message)
			}
			if got != want {
				t.Errorf("%s: %q, want %q", from, got, want)
			}
		}
	})
}

// TestDiscard: who may, and where it is allowed, deletes what cannot be read.
func TestDiscard(t *testing.T) {
	keys := secretboxKeys(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var store storage.Store
		s, stop := apitest.New(t, func(c *apiserver.Config) {
			store, c.Encryption, c.Features = c.Store, keys, features.Set{features.DiscardUnreadable: true}
			if _, _, ok, err := store.Put(ctx, "/registry/secrets/default/one", []byte(sealedBadly), 0, 0); !ok || err != nil {
				t.Fatal(ok, err)
			}
		})
		defer stop()
		secrets := s.Client(t).CoreV1().Secrets("default")
		if _, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := secrets.List(ctx, metav1.ListOptions{Limit: 500})
		if err == nil || !strings.Contains(err.Error(), "failed to read one or more secrets from the storage") || apierrors.ReasonForError(err) != metav1.StatusReasonStoreReadError {
			t.Errorf("list: %v", err)
		}
		force := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
		if err := secrets.Delete(ctx, "two", force); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "is exclusively used to delete corrupt object(s), try again by removing this option") {
			t.Errorf("delete of a good one: %v", err)
		}
		if err := secrets.DeleteCollection(ctx, force, metav1.ListOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("delete of all: %v", err)
		}
		if err := secrets.Delete(ctx, "one", force); err != nil {
			t.Errorf("delete: %v", err)
		}
		if l, err := secrets.List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 1 {
			t.Errorf("when it is gone: %v, %v", l, err)
		}
	})
}
