package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDebianArchive: in either format of apt's files the first address of Debian's
// main archive is found, and no other one is taken for it.
func TestDebianArchive(t *testing.T) {
	const others = "deb http://security.example/debian-security bookworm-security main\n" +
		"deb [signed-by=/k/other.gpg] http://other.example/debian bookworm main\n" +
		"deb-src http://source.example/debian bookworm main\n" +
		"# deb http://comment.example/debian bookworm main\n" +
		"deb http://tools.example/linux/debian bookworm stable\n"
	for _, c := range []struct{ name, file, text, want string }{
		{"lines", "sources.list", others + "deb http://mirror.example/debian/ bookworm main contrib # ours\n", "http://mirror.example/debian/"},
		{"lines with options", "sources.list.d/a.list", "deb [ arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg ] http://mirror.example/debian bookworm main\n", "http://mirror.example/debian"},
		{"paragraphs", "sources.list.d/debian.sources", "Types: deb\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\nEnabled: no\n\n" +
			"# one\nTypes: deb deb-src\n# two\nURIs:\n http://mirror.example/debian\nsuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n", "http://mirror.example/debian"},
		{"a list of mirrors", "sources.list.d/debian.sources", "Types: deb\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: bookworm\nComponents: main", "mirror+file:///etc/apt/mirrors/debian.list"},
		{"others alone", "sources.list", others, ""},
		{"another name", "sources.list.d/debian.off", "deb http://mirror.example/debian bookworm main\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			etc := t.TempDir()
			path := filepath.Join(etc, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := debianArchive(etc)
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}
