package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"knarr/internal/need"
)

// apiExamples is where k8s.io/api keeps an object of every kind.
func apiExamples(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	if err != nil {
		need.Skip(t, "needs the module k8s.io/api: go mod download k8s.io/api: ", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "testdata", "HEAD")
}

// TestNoPanic takes objects with every field set, and with none, through all
// that a Resource does: whatever a client sends, the answer is not a panic.
func TestNoPanic(t *testing.T) {
	dir := apiExamples(t)
	for _, r := range Resources {
		group := r.GVK().Group
		if group == "" {
			group = "core"
		}
		full := r.New()
		if r.GVK().Group == apiextensionsv1.GroupName {
			continue // not of this module: definition's own tests try it
		}
		data, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s.%s.%s.json", group, r.GVK().Version, r.GVK().Kind)))
		if errors.Is(err, fs.ErrNotExist) && !strings.HasPrefix(reflect.TypeOf(full).Elem().PkgPath(), "k8s.io/api/") {
			data, err = []byte("{}"), nil // its module ships no example
		}
		if err != nil {
			t.Errorf("%s: %v", r.GVK(), err)
			continue
		}
		if err := json.Unmarshal(data, full); err != nil {
			t.Errorf("%s: %v", r.GVK(), err)
			continue
		}
		t.Run(r.GVK().String(), func(t *testing.T) {
			for _, obj := range []Object{full, r.New()} {
				exercise(r, clone(obj), nil)
				for _, old := range []Object{full, r.New()} {
					exercise(r, clone(obj), clone(old))
				}
			}
		})
	}
}

func clone(o Object) Object { return o.DeepCopyObject().(Object) }

func exercise(r Resource, obj, old Object) {
	ctx := context.Background()
	r.ValidateObject(ctx, clone(obj), old) // even what was never defaulted
	r.Defaults(obj)
	r.PrepareObject(ctx, obj, old)
	r.ValidateObject(ctx, obj, old)
	r.Warnings(ctx, obj, old)
	r.GraceSeconds(obj, nil)
	r.Row(obj)
	r.FieldSet(obj)
	if s := r.Storage(); s.ToHub != nil {
		s.FromHub(s.ToHub(obj))
	}
	for _, s := range r.Subresources() {
		if old != nil && s.Prepare != nil {
			part := clone(obj)
			s.Prepare(ctx, part, old)
			if s.Validate != nil {
				s.Validate(ctx, part, old)
			}
		}
		if s.GetScale != nil {
			s.GetScale(obj)
			s.SetScale(clone(obj), 3)
		}
	}
}
