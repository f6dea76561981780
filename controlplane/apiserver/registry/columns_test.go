package registry

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var update = flag.Bool("update", false, "record the answers of the reference API server at $KNARR_ORACLE anew")

// TestColumns compares what `kubectl get` shows with the reference's columns.
func TestColumns(t *testing.T) {
	file := filepath.Join("testdata", "columns.json")
	golden := map[string][]metav1.TableColumnDefinition{}
	if *update {
		for _, r := range Resources {
			if r.IsVirtual() && !r.Supports("list") {
				continue
			}
			var table metav1.Table
			oracle(t, "GET", collectionPath(r, "default"), nil, "application/json;as=Table;v=v1;g=meta.k8s.io", &table)
			golden[r.GVR().String()] = table.ColumnDefinitions
		}
		record(t, file, golden)
	}
	load(t, file, &golden)
	for _, r := range Resources {
		if r.IsVirtual() && !r.Supports("list") {
			continue
		}
		want, got := golden[r.GVR().String()], r.ColumnDefinitions()
		for i := range max(len(want), len(got)) {
			switch {
			case i >= len(want):
				t.Errorf("%s: column %s too many", r.GVR(), got[i].Name)
			case i >= len(got):
				t.Errorf("%s: column %s missing", r.GVR(), want[i].Name)
			case want[i] != got[i]:
				t.Errorf("%s: got  %+v\nwant %+v", r.GVR(), got[i], want[i])
			}
		}
	}
}

func load(t *testing.T, file string, into any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func record(t *testing.T, file string, what any) {
	t.Helper()
	data, err := json.MarshalIndent(what, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
