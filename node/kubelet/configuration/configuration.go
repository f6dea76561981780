// Package configuration is the kubelet's configuration as upstream has it: a
// KubeletConfiguration from a file, from a directory of files that change it, and
// from flags. It reads those files, gives what is not said its default, and says
// what is wrong. It writes nothing.
package configuration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"knarr/internal/jsonfields"
)

// Settings are upstream's.
type Settings = kubeletconfig.KubeletConfiguration

// maxFile bounds one file of configuration.
const maxFile = 4 << 20

// A Document is what was said, and nothing of what was not: later words win.
type Document struct{ values map[string]any }

// File adds what a configuration file says.
func (d *Document) File(path string) error {
	values, err := read(path)
	if err != nil {
		return fmt.Errorf("failed to load kubelet config file, path: %s, error: %w", path, err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	resolve(values, filepath.Dir(path))
	d.merge(values)
	return nil
}

// paths are the fields of files and directories that upstream reads from the directory of the
// configuration file, where they are relative.
var paths = []string{"staticPodPath", "authentication.x509.clientCAFile", "tlsCertFile", "tlsPrivateKeyFile", "resolvConf", "volumePluginDir", "podLogsDir"}

// resolve makes what a file says of those absolute.
func resolve(values map[string]any, dir string) {
	d := Document{values}
	for _, field := range paths {
		if path := d.Text(field); path != "" && !filepath.IsAbs(path) {
			d.Put(field, filepath.Join(dir, path))
		}
	}
}

// Dir adds what the files *.conf of a directory and those below it say, in the order
// of their names.
func (d *Document) Dir(dir string) error {
	var skipped []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if filepath.Ext(path) != ".conf" {
			skipped = append(skipped, path)
			return nil
		}
		values, err := read(path)
		if err != nil {
			return fmt.Errorf("failed to load kubelet dropin file, path: %s, error: %w", path, err)
		}
		d.merge(values)
		return nil
	})
	if err != nil {
		return fmt.Errorf("failed to walk through kubelet dropin directory %q: %w", dir, err)
	}
	if len(skipped) > 0 {
		slog.Info("these files of the kubelet's configuration are no *.conf and were left out", "files", strings.Join(skipped, ", "))
	}
	return nil
}

func (d *Document) merge(values map[string]any) {
	if d.values == nil {
		d.values = map[string]any{}
	}
	merge(d.values, values)
}

// merge changes into by a JSON merge patch: objects are merged, null removes,
// everything else replaces.
func merge(into, patch map[string]any) {
	for key, v := range patch {
		if v == nil {
			delete(into, key)
			continue
		}
		p, ok := v.(map[string]any)
		if !ok {
			into[key] = v
			continue
		}
		below, ok := into[key].(map[string]any)
		if !ok {
			below = map[string]any{}
			into[key] = below
		}
		merge(below, p)
	}
}

// read is one file as an object of JSON.
func read(path string) (map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	values, unknown, err := decode(b)
	if err := errors.Join(unknown...); err != nil {
		slog.Warn("kubelet: using lenient decoding as strict decoding failed", "file", path, "err", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if err == nil && jsonfields.MoreDocuments(b) { // kubeadm's file has several
		slog.Warn("kubelet: only the first document of this file is read", "file", path)
	}
	return values, err
}

// decode is what a file says, and the fields in it that there are not. These are left
// out, as upstream does, so that the configuration of a newer version does.
func decode(b []byte) (values map[string]any, unknown []error, err error) {
	j, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(j, &values); err != nil {
		return nil, nil, err
	}
	for _, field := range []string{"kind", "apiVersion"} {
		if values[field] == nil {
			return nil, nil, fmt.Errorf("unknown apiVersion/kind: %s is missing; a file has to begin with kind %q of version %q", field, "KubeletConfiguration", kubeletconfig.SchemeGroupVersion)
		}
	}
	if values["kind"] != "KubeletConfiguration" || values["apiVersion"] != kubeletconfig.SchemeGroupVersion.String() {
		return nil, nil, fmt.Errorf("unknown apiVersion/kind: no kind %q of version %q, but %v of %v",
			"KubeletConfiguration", kubeletconfig.SchemeGroupVersion, values["kind"], values["apiVersion"])
	}
	delete(values, "kind")
	delete(values, "apiVersion")
	s := &Settings{}
	if j, err = json.Marshal(values); err != nil {
		return nil, nil, err
	}
	if unknown, err = jsonfields.Decode(j, s); err != nil {
		if of, ok := errors.AsType[*jsonfields.Error](err); ok {
			err = fmt.Errorf("%s: %w", label(of.Field), of.Err)
		}
		return nil, nil, err
	}
	for i, u := range unknown {
		unknown[i] = fmt.Errorf("%w is ignored%s", u, jsonfields.Hint(u, s))
	}
	return values, unknown, nil
}

// typed are the settings of what was said, and the fields that there are not.
func typed(values map[string]any) (s *Settings, unknown []error, err error) {
	b, err := json.Marshal(values)
	if err != nil {
		return nil, nil, err
	}
	s = &Settings{}
	unknown, err = kjson.UnmarshalStrict(b, s)
	return s, unknown, err
}

// Settings are what was said, with defaults for the rest.
func (d *Document) Settings() (*Settings, error) {
	s, _, err := typed(d.values)
	if err != nil {
		return nil, err
	}
	var f faults
	validateGates(&f, s)
	Default(s)
	return s, errors.Join(append(f, Validate(s))...)
}

// Given says whether a setting was said; its name is that of the field, with a dot
// before one of an object.
func (d *Document) Given(field string) bool {
	_, ok := d.lookup(field)
	return ok
}

// Text is what was said of a setting that is a text; "" for nothing.
func (d *Document) Text(field string) string {
	is, _ := d.lookup(field)
	text, _ := is.(string)
	return text
}

func (d *Document) lookup(field string) (any, bool) {
	var at any = d.values
	for part := range strings.SplitSeq(field, ".") {
		object, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = object[part]; !ok {
			return nil, false
		}
	}
	return at, true
}

// DropIdle takes back what was said of fields that change nothing, so that the settings are
// what holds; alone says that the process runs a kubelet and nothing else.
func (d *Document) DropIdle(alone bool) {
	for field := range idle {
		if !alone || !actsAlone[field] {
			d.Remove(field)
		}
	}
}

// Idle are the fields that were said and change nothing here, each with the reason.
func (d *Document) Idle(alone bool) []string {
	var out []string
	for _, field := range slices.Sorted(maps.Keys(idle)) {
		is, ok := d.lookup(field)
		if !ok || alone && actsAlone[field] {
			continue
		}
		if of := idle[field]; of.default_ == nil || fmt.Sprint(is) != fmt.Sprint(of.default_) {
			out = append(out, field+" ("+of.why+")")
		}
	}
	for _, burst := range slices.Sorted(maps.Keys(burstOf)) {
		_, ok := d.lookup(burst)
		if rate, given := d.lookup(burstOf[burst]); ok && (!given || fmt.Sprint(rate) == "0") {
			out = append(out, burst+" (nothing is held back without "+burstOf[burst]+")")
		}
	}
	gates, _ := d.lookup("featureGates")
	for _, setting := range idleGates(gates) {
		out = append(out, "featureGates: "+setting+" (it is always as by default)")
	}
	return out
}
