package criconfig

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/podfile"
)

// maxEnvFile bounds a file of environment variables; its lines are bounded by
// the scanner, at 64 KiB.
const maxEnvFile = 1 << 20

// FileKey answers a variable read from a file that containers of the pod wrote
// to a volume.
func (d *Downward) FileKey(ref *corev1.FileKeySelector) (string, bool, error) {
	v, ok := d.Volumes[ref.VolumeName]
	if !ok {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	value, err := envFileValue(v.Path, ref.Path, ref.Key)
	if err != nil {
		return "", false, errors.New("couldn't parse env file")
	}
	if value == "" && (ref.Optional == nil || !*ref.Optional) {
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, filepath.Join(v.Path, ref.Path))
	}
	return value, value != "", nil
}

func envFileValue(volume, name, key string) (string, error) {
	f, err := podfile.OpenWithin(volume, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return "", err
	} else if st.Size() > maxEnvFile {
		return "", podfile.ErrTooLarge
	}
	return parseEnvFile(io.LimitReader(f, maxEnvFile), key)
}

var errEnvFile = errors.New("invalid environment variable format")

// parseEnvFile looks for a key in lines NAME='value', the subset of a shell's
// syntax that upstream takes: values are in single quotes, may span lines and
// are taken as they are; blank lines and comments are skipped. Without the key
// the value is empty.
func parseEnvFile(r io.Reader, key string) (string, error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		line := strings.TrimLeft(s.Text(), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" || strings.TrimRight(name, " \t") != name {
			return "", errEnvFile
		}
		if strings.TrimLeft(value, " \t") != value {
			// To a shell this is an empty value with a command after it.
			if name == key {
				return "", nil
			}
			continue
		}
		if !strings.HasPrefix(value, "'") {
			return "", errEnvFile
		}
		var b strings.Builder
		for rest := value[1:]; ; rest = s.Text() {
			before, after, closed := strings.Cut(rest, "'")
			b.WriteString(before)
			if closed {
				if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
					return "", errEnvFile
				}
				break
			}
			b.WriteByte('\n')
			if !s.Scan() {
				return "", errEnvFile
			}
		}
		if name == key {
			return b.String(), nil
		}
	}
	return "", s.Err()
}
