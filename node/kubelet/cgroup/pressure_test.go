package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestPressure(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"cgroup.controllers":  "cpu memory",
		"pod/cpu.pressure":    "some avg10=1.50 avg60=0.25 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n",
		"pod/memory.pressure": "no words of the kernel\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree := OpenAt(root)
	want := Pressure{Some: Wait{Total: 7000, Avg10: 1.5, Avg60: 0.25}, Full: Wait{Total: 3000}}
	if p, ok := tree.Pressure("pod", "cpu"); !ok || p != want {
		t.Errorf("%+v %v, want %+v", p, ok, want)
	}
	for _, resource := range []string{"memory", "io"} {
		if p, ok := tree.Pressure("pod", resource); ok {
			t.Errorf("%s: %+v", resource, p)
		}
	}
}
