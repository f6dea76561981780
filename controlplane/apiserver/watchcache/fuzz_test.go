package watchcache

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/controlplane/apiserver/registry"
)

// Setting the version by splicing bytes is the same as decoding, setting and
// encoding, for whatever decodes; and never a panic.
func FuzzWithResourceVersion(f *testing.F) {
	for _, o := range []*corev1.ConfigMap{
		{},
		{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", ResourceVersion: "7", UID: "u"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"k": "v"}, Generation: 3, Finalizers: []string{"f"}}, Data: map[string]string{"k": "v"}},
	} {
		b, err := o.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, int64(42))
		f.Add(b[:len(b)/2], int64(1))
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, int64(-1))
	f.Add([]byte{0x0a, 0x00, 0x12, 0x00}, int64(9223372036854775807))
	f.Fuzz(func(t *testing.T, message []byte, revision int64) {
		before := bytes.Clone(message)
		spliced, err := withResourceVersion(message, revision)
		if !bytes.Equal(before, message) {
			t.Fatal("the stored bytes were changed")
		}
		want := &corev1.ConfigMap{}
		if want.Unmarshal(message) != nil || err != nil {
			return
		}
		canonical, merr := want.Marshal()
		if merr != nil || !bytes.Equal(canonical, message) {
			return // only what an encoder writes is ever stored
		}
		want.ResourceVersion = strconv.FormatInt(revision, 10)
		encoded, merr := want.Marshal()
		if merr != nil {
			return
		}
		got := &corev1.ConfigMap{}
		if err := got.Unmarshal(spliced); err != nil {
			t.Fatalf("spliced: %v", err)
		}
		again, merr := got.Marshal()
		if merr != nil || !bytes.Equal(again, encoded) || !bytes.Equal(spliced, encoded) {
			t.Fatalf("spliced %x\nencoded %x", spliced, encoded)
		}
	})
}

// A stored value is read or refused, never a panic.
func FuzzStoredValue(f *testing.F) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}
	c := &codec{prefix: "configmaps", stored: envelopeHead(corev1.SchemeGroupVersion.WithKind("ConfigMap")), new: func() registry.Object { return &corev1.ConfigMap{} }}
	value, _, err := c.encode(o)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value)
	f.Add(value[:len(value)-6])
	f.Add([]byte("k8s\x00"))
	f.Add([]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"v"}}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		rec, err := c.record("ns/a", value, 7)
		if err != nil {
			return
		}
		got := &corev1.ConfigMap{}
		if got.Unmarshal(rec.message) == nil && got.ResourceVersion != "7" {
			raw, _ := c.messageOf(value)
			plain := &corev1.ConfigMap{}
			if plain.Unmarshal(raw) == nil {
				if canonical, err := plain.Marshal(); err == nil && bytes.Equal(canonical, raw) {
					t.Fatalf("resourceVersion %q", got.ResourceVersion)
				}
			}
		}
	})
}

// What a client sends back to go on with a list is a place in it or refused.
func FuzzContinue(f *testing.F) {
	f.Add(encodeContinue(7, "ns/a"))
	f.Add("")
	f.Add("e30")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":-1,"start":"../x"}`)))
	f.Fuzz(func(t *testing.T, s string) {
		got, err := decodeContinue(s)
		if err != nil {
			return
		}
		if got.Revision == 0 { // below is: whatever is newest
			t.Fatal("no revision")
		}
		again, err := decodeContinue(encodeContinue(got.Revision, got.Start))
		if err != nil || again.Revision != got.Revision || again.Start != got.Start && len(got.Start) > 0 && got.Start[len(got.Start)-1] != 0 {
			t.Fatalf("%+v becomes %+v, %v", got, again, err)
		}
	})
}
