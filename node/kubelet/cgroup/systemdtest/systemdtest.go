// Package systemdtest is a systemd for tests, on a D-Bus of its own. It makes the directories
// of slices below one that it is given, and notes what it is asked for.
package systemdtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"

	"knarr/internal/bustest"
)

const (
	name     = "org.freedesktop.systemd1"
	path     = dbus.ObjectPath("/org/freedesktop/systemd1")
	manager  = name + ".Manager"
	notKnown = name + ".NoSuchUnit"
)

// version is what it says of itself: Debian's.
const version = "252 (252.38-1~deb12u1)"

// Systemd has units.
type Systemd struct {
	*bustest.Bus

	root   string
	conn   *dbus.Conn
	mu     sync.Mutex
	result string // of jobs
	jobs   uint32
	units  map[string]map[string]any // properties by name
	calls  []string
}

// A Property is one of a unit, on the wire.
type Property struct {
	Name  string
	Value dbus.Variant
}

// An Auxiliary is a further unit of a call, on the wire.
type Auxiliary struct {
	Name       string
	Properties []Property
}

// Start starts a bus and a systemd whose groups are below root.
func Start(t testing.TB, root string) *Systemd {
	t.Helper()
	s := &Systemd{Bus: bustest.Start(t), result: "done", root: root, units: map[string]map[string]any{}}
	s.Connect(t)
	return s
}

// Connect has it on its bus again, which it lost.
func (s *Systemd) Connect(t testing.TB) {
	t.Helper()
	conn := s.Serve(t, []string{name}, []bustest.Object{
		{Methods: methods{s}, Path: path, Interface: manager},
		{Methods: properties{}, Path: path, Interface: "org.freedesktop.DBus.Properties"},
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
}

// EndJobs has jobs end so from now on, as systemd says it; with "silent" they do not end.
func (s *Systemd) EndJobs(result string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result = result
}

// Calls are those since the last time, as METHOD UNIT.
func (s *Systemd) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.calls
	s.calls = nil
	return all
}

// Units are the names of those that run.
func (s *Systemd) Units() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.units))
}

// Properties are those that a unit was given, nil if it does not run.
func (s *Systemd) Properties(unit string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.units[unit])
}

// Dir is where a slice's group is.
func (s *Systemd) Dir(unit string) string {
	dir, prefix := s.root, ""
	for part := range strings.SplitSeq(strings.TrimSuffix(unit, ".slice"), "-") {
		dir = filepath.Join(dir, prefix+part+".slice")
		prefix += part + "-"
	}
	return dir
}

// start makes the group of a slice and those above it, each of which is a unit.
func (s *Systemd) start(unit string) {
	parts := strings.Split(strings.TrimSuffix(unit, ".slice"), "-")
	for i := range parts {
		one := strings.Join(parts[:i+1], "-") + ".slice"
		if s.units[one] == nil {
			s.units[one] = map[string]any{}
		}
	}
	_ = os.MkdirAll(s.Dir(unit), 0o755)
}

// end is the job that began: what happens in it, and its end, which all clients are told of.
func (s *Systemd) end(unit string, happens func()) dbus.ObjectPath {
	if s.result == "done" {
		happens()
	}
	s.jobs++
	job := dbus.ObjectPath(fmt.Sprintf("%s/job/%d", path, s.jobs))
	if s.result != "silent" {
		_ = s.conn.Emit(path, manager+".JobRemoved", s.jobs, job, unit, s.result)
	}
	return job
}

type methods struct{ *Systemd }

func (m methods) called(method, unit string) func() {
	m.mu.Lock()
	m.calls = append(m.calls, method+" "+unit)
	return m.mu.Unlock
}

// StartTransientUnit makes a unit that is in no file.
func (m methods) StartTransientUnit(unit, _ string, props []Property, _ []Auxiliary) (dbus.ObjectPath, *dbus.Error) {
	defer m.called("StartTransientUnit", unit)()
	if m.units[unit] != nil {
		return "", dbus.NewError(name+".UnitExists", []any{"Unit " + unit + " was already loaded or has a fragment file."})
	}
	return m.end(unit, func() {
		m.start(unit)
		m.set(unit, props)
	}), nil
}

// StartUnit starts one that is known.
func (m methods) StartUnit(unit, _ string) (dbus.ObjectPath, *dbus.Error) {
	defer m.called("StartUnit", unit)()
	return m.end(unit, func() { m.start(unit) }), nil
}

// StopUnit ends a slice and those below it.
func (m methods) StopUnit(unit, _ string) (dbus.ObjectPath, *dbus.Error) {
	defer m.called("StopUnit", unit)()
	if m.units[unit] == nil {
		return "", dbus.NewError(notKnown, []any{"Unit " + unit + " not loaded."})
	}
	return m.end(unit, func() {
		maps.DeleteFunc(m.units, func(u string, _ map[string]any) bool {
			return u == unit || strings.HasPrefix(u, strings.TrimSuffix(unit, ".slice")+"-")
		})
		_ = os.RemoveAll(m.Dir(unit))
	}), nil
}

// SetUnitProperties changes one.
func (m methods) SetUnitProperties(unit string, _ bool, props []Property) *dbus.Error {
	defer m.called("SetUnitProperties", unit)()
	if m.units[unit] == nil {
		return dbus.NewError(notKnown, []any{"Unit " + unit + " not found."})
	}
	m.set(unit, props)
	return nil
}

func (m methods) set(unit string, props []Property) {
	for _, p := range props {
		m.units[unit][p.Name] = p.Value.Value()
	}
}

// ResetFailedUnit forgets that one failed.
func (m methods) ResetFailedUnit(unit string) *dbus.Error {
	m.called("ResetFailedUnit", unit)()
	return dbus.NewError(notKnown, []any{"Unit " + unit + " not loaded."})
}

type properties struct{}

// Get reads its version.
func (properties) Get(_, of string) (dbus.Variant, *dbus.Error) {
	if of != "Version" {
		return dbus.Variant{}, dbus.MakeFailedError(fmt.Errorf("no property %s", of))
	}
	return dbus.MakeVariant(version), nil
}
