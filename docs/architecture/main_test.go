package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// TestPicture: the picture of the first page shows the table of components as it is.
func TestPicture(t *testing.T) {
	want, err := render(root)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(filepath.Join(root, picture))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is older than the table in cluster/components.go and cluster/node.go: go run ./docs/architecture", picture)
	}
	for d := xml.NewDecoder(bytes.NewReader(want)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", picture, err)
		}
	}
}

// TestComponents: the names come from the table, and each needs a caption.
func TestComponents(t *testing.T) {
	file := filepath.Join(t.TempDir(), "table.go")
	if err := os.WriteFile(file, []byte(`package cluster
func (s *Server) components() []component {
	return []component{{"not", nil}, component{"one", s.one}, watched(component{"two", s.two})}
}
func other() component { return component{"three", nil} }
`), 0o600); err != nil {
		t.Fatal(err)
	}
	names, err := components(file)
	if err != nil || strings.Join(names, " ") != "one two" {
		t.Errorf("found %v, %v", names, err)
	}
	if _, err := draw([]string{"kube-scheduler", "unheard-of"}, []string{"kubelet"}); err == nil || !strings.Contains(err.Error(), "unheard-of") {
		t.Errorf("a component without a caption: %v", err)
	}
	if _, err := components(filepath.Join(root, "cluster/wait.go")); err == nil {
		t.Error("found a table where there is none")
	}
}

// TestCaptions: no caption outlives its component.
func TestCaptions(t *testing.T) {
	servers, err := components(filepath.Join(root, "cluster/components.go"))
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := components(filepath.Join(root, "cluster/node.go"))
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, name := range append(servers, nodes...) {
		there[name] = true
	}
	for name := range captions {
		if !there[name] {
			t.Errorf("the table has no component %s any more", name)
		}
	}
}
