package logquery

import (
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// FuzzQuery: whatever a query says, journalctl gets flags alone, one for each
// thing asked for, and what is opened lies below the directory of logs.
func FuzzQuery(f *testing.F) {
	for _, s := range []string{
		"", "query", "query=kubelet&tailLines=3&boot=-1", "query=/plain", "query=/../secret", "query=outside", "query=deep/up/../plain",
		"query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-02T06:04:05.25%2B02:00", "query=a&pattern=--x%00(", "query=..&query=--file", "query=a&query=/b",
	} {
		f.Add(s)
	}
	dir, err := filepath.EvalSymlinks(logs(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		values, _ := url.ParseQuery(raw)
		q, errs := Parse(values)
		if q == nil {
			_ = errs.ToAggregate()
			return
		}
		if errs := q.Validate(); len(errs) > 0 {
			_ = errs.ToAggregate().Error()
			return
		}
		units := 0
		for _, a := range arguments(q.Services, q.Options) {
			if !strings.HasPrefix(a, "--") || strings.ContainsRune(a, 0) {
				t.Errorf("%q: argument %q", raw, a)
			}
			if strings.HasPrefix(a, "--unit=") {
				units++
			}
		}
		if units != len(q.Services) || units > maxServices || units > 0 && len(q.Files) > 0 || len(q.Files) > 1 {
			t.Errorf("%q: %+v", raw, q)
		}
		for _, name := range append(q.Services, q.Files...) {
			file, _, err := directory(dir).open(name)
			if err != nil {
				continue
			}
			at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
			file.Close()
			if err != nil || at != dir && !strings.HasPrefix(at, dir+"/") {
				t.Errorf("%q opened %s, %v", raw, at, err)
			}
		}
	})
}
