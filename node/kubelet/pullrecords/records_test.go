package pullrecords

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func secret(name, hash string) Secret {
	return Secret{UID: "u-" + name, Namespace: "ns", Name: name, CredentialHash: hash}
}

func having(s ...Secret) func() Presented { return func() Presented { return Presented{Secrets: s} } }

func as(name string) func() Presented {
	return func() Presented { return Presented{ServiceAccount: &ServiceAccount{"u-" + name, "ns", name}} }
}

func TestMustPull(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	with := func(x ...Secret) Credentials { return Credentials{KubernetesSecrets: x} }
	for image, used := range map[string]Credentials{
		"reg/private:1": with(secret("a", "1")), "reg/open:1": {NodePodsAccessible: true}, "reg/damaged:1": with(secret("a", "1")),
	} {
		ok(t, s.Begin(image))
		ok(t, s.Succeed(image, "id-"+image, used))
	}
	ok(t, os.WriteFile(filepath.Join(s.pulled, fileName("id-reg/damaged:1")), []byte(`{"kind":"Imag`), 0o600))
	ok(t, s.Begin("reg/underway:1"))
	ok(t, s.Begin("reg/failed:1"))
	ok(t, s.Fail("reg/failed:1"))
	if pulling, pulled := s.Sizes(); pulling != 1 || pulled != 3 {
		t.Errorf("%d under way and %d ended on disk", pulling, pulled)
	}
	for round := range 2 { // the second time from disk alone
		results := map[string]int{}
		s.Checked = func(result string) { results[result]++ }
		for _, c := range []struct {
			what, image, id string
			have            []Secret
			want            bool
		}{
			{"loaded by hand", "reg/loaded:1", "id-x", nil, false},
			{"failed before it was loaded", "reg/failed:1", "id-y", nil, false},
			{"pulled by all", "reg/open:1", "id-reg/open:1", nil, false},
			{"the same secret", "reg/private:1", "id-reg/private:1", []Secret{secret("a", "1")}, false},
			{"one of several", "reg/private:1", "id-reg/private:1", []Secret{secret("b", "2"), secret("a", "1")}, false},
			{"another tag of the same name", "reg/private:latest", "id-reg/private:1", []Secret{secret("a", "1")}, false},
			{"nothing", "reg/private:1", "id-reg/private:1", nil, true},
			{"another secret", "reg/private:1", "id-reg/private:1", []Secret{secret("b", "2")}, true},
			{"no hash", "reg/private:1", "id-reg/private:1", []Secret{secret("b", "")}, true},
			{"another name of the image", "other/private:1", "id-reg/private:1", []Secret{secret("a", "1")}, true},
			{"being pulled", "reg/underway:1", "id-u", nil, true},
			{"a damaged record", "reg/damaged:1", "id-reg/damaged:1", []Secret{secret("a", "1")}, true},
		} {
			if got := s.MustPull(c.image, c.id, having(c.have...)); got != c.want {
				t.Errorf("round %d, %s: %v", round, c.what, got)
			}
		}
		if want := map[string]int{"credentialPolicyAllowed": 2, "credentialRecordFound": 4, "mustAuthenticate": 5, "error": 1}; !maps.Equal(results, want) {
			t.Errorf("round %d: checks ended %v, want %v", round, results, want)
		}
		s = open(t, dir)
	}
	// The same credentials elsewhere are learned, and so are changed ones of a
	// secret that was right.
	if s.MustPull("reg/private:1", "id-reg/private:1", having(secret("c", "1"))) || s.MustPull("reg/private:1", "id-reg/private:1", having(secret("c", "3"))) {
		t.Error("known credentials are not enough")
	}
	if s.MustPull("reg/private:1", "id-reg/private:1", having(secret("d", "3"))) {
		t.Error("what was learned is not known")
	}
}

// TestRecover: a pull that ended while nobody looked leaves an image that
// everybody has to show credentials for.
func TestRecover(t *testing.T) {
	dir := t.TempDir()
	ok(t, open(t, dir).Begin("busybox"))
	s := open(t, dir)
	ok(t, s.Recover([]Image{{"id", []string{"docker.io/library/busybox:latest"}}}))
	if !s.MustPull("busybox", "id", having()) || !s.MustPull("library/busybox", "id", having()) {
		t.Error("the image is for all")
	}
	if exists(s.pulling, "busybox") {
		t.Error("the intent is still there")
	}
}

// TestGiveUp: an image whose pull ended while nobody waited is for those alone that show that
// they may have it, now and after a restart.
func TestGiveUp(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	ok(t, s.Begin("busybox"))
	ok(t, s.GiveUp("busybox"))
	if !s.MustPull("busybox", "id", having()) {
		t.Error("the image is for all")
	}
	s = open(t, dir)
	ok(t, s.Recover([]Image{{"id", []string{"docker.io/library/busybox:latest"}}}))
	if !s.MustPull("busybox", "id", having()) {
		t.Error("the image is for all after a restart")
	}
}

func TestPrune(t *testing.T) {
	s := open(t, t.TempDir())
	for _, image := range []string{"gone", "there"} {
		ok(t, s.Begin(image))
		ok(t, s.Succeed(image, "id-"+image, Credentials{KubernetesSecrets: []Secret{secret("a", "1")}}))
	}
	ok(t, os.WriteFile(filepath.Join(s.pulled, filePrefix+"bad"), nil, 0o600))
	before := time.Now().Add(-time.Minute)
	_ = s.Prune([]string{"id-there"}, before)
	if !s.MustPull("gone", "id-gone", having()) {
		t.Error("forgot an image that was pulled after the list was asked for")
	}
	if err := s.Prune([]string{"id-there"}, time.Now().Add(2*time.Second)); err == nil {
		t.Error("nothing was said of the damaged record")
	}
	if s.MustPull("gone", "id-gone", having()) || !s.MustPull("there", "id-there", having()) {
		t.Error("the wrong record went")
	}
}

// TestServiceAccounts: what was pulled for a service account's token is for the pods of
// this one, whatever their other credentials.
func TestServiceAccounts(t *testing.T) {
	s := open(t, t.TempDir())
	pull := func(used Credentials) {
		ok(t, s.Begin("reg/app:1"))
		ok(t, s.Succeed("reg/app:1", "id", used))
	}
	pull(Credentials{KubernetesServiceAccounts: []ServiceAccount{{"u-b", "ns", "b"}}})
	pull(Credentials{KubernetesServiceAccounts: []ServiceAccount{{"u-a", "ns", "a"}}})
	pull(Credentials{KubernetesSecrets: []Secret{secret("s", "1")}})
	for what, c := range map[string]struct {
		have func() Presented
		want bool
	}{
		"the first": {as("a"), false}, "the second": {as("b"), false}, "another": {as("c"), true}, "none": {having(), true},
		"the secret": {having(secret("s", "1")), false},
		"a namesake": {func() Presented { return Presented{ServiceAccount: &ServiceAccount{"u-later", "ns", "a"}} }, true},
	} {
		if got := s.MustPull("reg/app:1", "id", c.have); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
	pull(Credentials{NodePodsAccessible: true})
	if s.MustPull("reg/app:1", "id", having()) {
		t.Error("the node's image is not for all")
	}
}

// TestBounds: what tenants make of secrets and names does not make a record
// larger than can be read again.
func TestBounds(t *testing.T) {
	r := &record{}
	for i := range 3 * maxSecrets {
		r.add("n", &Credentials{KubernetesSecrets: []Secret{secret(fmt.Sprint(i), "h")}})
		r.add(fmt.Sprint("n", i), &Credentials{NodePodsAccessible: true})
	}
	if got := len(r.CredentialMapping["n"].KubernetesSecrets); got != maxSecrets {
		t.Errorf("%d secrets", got)
	}
	if got := len(r.CredentialMapping); got != maxNames {
		t.Errorf("%d names", got)
	}
}

func TestPublic(t *testing.T) {
	s := open(t, t.TempDir())
	for image, used := range map[string]Credentials{
		"reg/private:1": {KubernetesSecrets: []Secret{secret("a", "1")}}, "reg/open:1": {NodePodsAccessible: true},
		"busybox": {NodePodsAccessible: true}, "me/private": {KubernetesSecrets: []Secret{secret("a", "1")}},
	} {
		ok(t, s.Begin(image))
		ok(t, s.Succeed(image, "id-"+image, used))
	}
	ok(t, s.Begin("reg/underway:1"))
	ok(t, s.Begin("me/underway"))
	for _, c := range []struct {
		image, id string
		want      bool
	}{
		{"reg/open:1", "id-reg/open:1", true},
		{"reg/open:other", "id-reg/open:1", true},
		{"reg/private:1", "id-reg/private:1", false},
		{"reg/open:1", "id-reg/private:1", false}, // the same content by another name
		{"reg/underway:1", "id-x", false},
		{"reg/loaded:1", "id-x", true},
		// By its full name, whatever a pod calls it.
		{"docker.io/library/busybox:latest", "id-busybox", true},
		{"docker.io/library/busybox@sha256:" + strings.Repeat("0", 64), "id-busybox", true},
		{"docker.io/other/busybox:latest", "id-busybox", false},
		{"docker.io/me/private:latest", "id-me/private", false},
		{"docker.io/me/underway:latest", "id-x", false},
		{"docker.io/me/loaded:latest", "id-x", true},
	} {
		if got := s.Public(c.image, c.id); got != c.want {
			t.Errorf("%s as %s: %v", c.image, c.id, got)
		}
	}
}

// TestDirectoryRemoved: a cleaner that takes the directories along keeps no image from
// being pulled.
func TestDirectoryRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	ok(t, os.RemoveAll(filepath.Join(dir, "image_manager")))
	ok(t, s.Begin("reg/app:1"))
	ok(t, s.Succeed("reg/app:1", "id", Credentials{NodePodsAccessible: true}))
	if open(t, dir).MustPull("reg/app:1", "id", having()) {
		t.Error("what was pulled is not remembered")
	}
}
