package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// An aptSource is one line of a list of apt, or one paragraph of a file in its
// newer format.
type aptSource struct {
	types, uris, components []string
	signedBy                string
}

// debianArchive is the address of Debian's main archive that the host's apt is told
// of, so that packages of another release come from the same place.
func debianArchive(etc string) (string, error) {
	paths := []string{filepath.Join(etc, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(etc, "sources.list.d", pattern))
		if err != nil {
			return "", err
		}
		paths = append(paths, more...)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		read := aptLines
		if filepath.Ext(path) == ".sources" {
			read = aptParagraphs
		}
		for _, s := range read(string(b)) {
			if uri, ok := s.debian(); ok {
				return uri, nil
			}
		}
	}
	return "", fmt.Errorf("no file of %s names Debian's archive (deb URI SUITE main, where a folder of URI is debian): the images are made of its packages", etc)
}

// debian is the first address, if it is Debian's main archive: others have a folder
// of this name too, but they are signed by others.
func (s aptSource) debian() (string, bool) {
	if !slices.Contains(s.types, "deb") || !slices.Contains(s.components, "main") {
		return "", false
	}
	if s.signedBy != "" && !strings.Contains(s.signedBy, "debian-archive-keyring") {
		return "", false
	}
	for _, uri := range s.uris {
		for folder := range strings.SplitSeq(uri, "/") {
			if folder == "debian" || folder == "debian.list" { // the latter is a list of mirrors
				return uri, true
			}
		}
	}
	return "", false
}

// aptLines reads lines such as "deb [signed-by=FILE] URI SUITE COMPONENT...".
func aptLines(text string) (all []aptSource) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		var s aptSource
		var options string
		if before, rest, ok := strings.Cut(line, "["); ok && len(strings.Fields(before)) == 1 {
			options, rest, _ = strings.Cut(rest, "]")
			line = before + rest
		}
		for o := range strings.FieldsSeq(options) {
			if by, ok := strings.CutPrefix(o, "signed-by="); ok {
				s.signedBy = by
			}
		}
		if f := strings.Fields(line); len(f) > 3 {
			s.types, s.uris, s.components = f[:1], f[1:2], f[3:]
			all = append(all, s)
		}
	}
	return all
}

// aptParagraphs reads paragraphs of lines such as "URIs: ADDRESS...", where an
// indented line belongs to the one before.
func aptParagraphs(text string) (all []aptSource) {
	fields, last := map[string]string{}, ""
	add := func() {
		if !slices.Contains([]string{"no", "false", "off", "0"}, strings.ToLower(strings.TrimSpace(fields["enabled"]))) {
			all = append(all, aptSource{
				types: strings.Fields(fields["types"]), uris: strings.Fields(fields["uris"]),
				components: strings.Fields(fields["components"]), signedBy: strings.TrimSpace(fields["signed-by"]),
			})
		}
		clear(fields)
	}
	for line := range strings.Lines(text) {
		switch name, value, ok := strings.Cut(line, ":"); {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			add()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += " " + line
		case ok:
			last = strings.ToLower(strings.TrimSpace(name))
			fields[last] = value
		}
	}
	add()
	return all
}
