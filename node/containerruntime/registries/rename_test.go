package registries

import "testing"

func TestRename(t *testing.T) {
	m := parsed(t, `mirrors: {docker.io: {endpoint: [m], rewrite: {"^library/(.*)": "hub/$1", "^(a|library)/": "never/"}}}`).Mirrors["docker.io"]
	for name, want := range map[string]string{
		"library/busybox": "never/busybox", // "^(a" comes before "^l"
		"a/b":             "never/b",
		"b/blobs":         "b/blobs",
		"":                "",
	} {
		if got := m.rename(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
