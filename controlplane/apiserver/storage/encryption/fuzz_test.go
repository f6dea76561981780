package encryption

import (
	"bytes"
	"testing"
)

// What a KMS plugin's envelope holds is read back as it was written, and what is
// none is refused.
func FuzzEnvelope(f *testing.F) {
	whole := &envelope{data: []byte("sealed"), keyID: "k1", source: []byte("seed"), annotations: map[string][]byte{"a.example.com": []byte("1")}, kind: seedSource}
	f.Add(whole.append(nil))
	f.Add((&envelope{data: []byte{0}, keyID: "k", source: []byte{1}}).append(nil))
	f.Add([]byte{0x22, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseEnvelope(data)
		if err != nil {
			return
		}
		again, err := parseEnvelope(e.append(nil))
		if err != nil {
			t.Fatalf("written anew: %v", err)
		}
		if !bytes.Equal(again.data, e.data) || again.keyID != e.keyID || !bytes.Equal(again.source, e.source) || again.kind != e.kind || len(again.annotations) != len(e.annotations) {
			t.Fatalf("%+v is not %+v", again, e)
		}
	})
}

// A value sealed opens as it was; one that somebody changed never panics, and
// opens as something else only where nothing is authenticated.
func FuzzSealed(f *testing.F) {
	f.Add([]byte("value"), []byte("/registry/secrets/a/b"), 3)
	f.Add([]byte{}, []byte{}, 0)
	f.Add(bytes.Repeat([]byte{16}, 32), []byte("k"), 40)
	key := bytes.Repeat([]byte("k"), 32)
	makers := map[string]func([]byte) (provider, error){"aesgcm": newGCM, "aescbc": newCBC, "secretbox": newBox}
	f.Fuzz(func(t *testing.T, plain, about []byte, at int) {
		for name, make := range makers {
			p, err := make(key)
			if err != nil {
				t.Fatal(err)
			}
			sealed, err := p.seal(plain, about)
			if err != nil {
				t.Fatal(err)
			}
			if got, _, err := p.open(sealed, about); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("%s: %q, %v", name, got, err)
			}
			changed := bytes.Clone(sealed)
			changed[uint(at)%uint(len(changed))] ^= 1
			if _, _, err := p.open(changed, about); err == nil && name != "aescbc" {
				t.Fatalf("%s opens what was changed", name)
			}
			_, _, _ = p.open(plain, about)
		}
	})
}

// A configuration is read or refused, whatever it says.
func FuzzConfig(f *testing.F) {
	f.Add(config("- resources: [secrets]\n  providers:\n  - aescbc: {keys: [{name: a, secret: a2tra2tra2tra2tra2tra2tra2tra2tr}]}\n  - identity: {}\n"))
	f.Add(config("- resources: ['*.apps', '*.*']\n  providers: [{}]\n"))
	f.Add([]byte("apiVersion: [1]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("kms")) {
			t.Skip("asks a plugin")
		}
		table, err := (&parser{counts: newCounts()}).parse(data)
		if err == nil && len(table) == 0 {
			t.Fatalf("%q encrypts nothing", data)
		}
	})
}
