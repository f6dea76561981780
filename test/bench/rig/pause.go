package rig

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// pauseImage writes an archive of the pause image that containerd here is told
// to use, from the program that make builds.
func pauseImage(p Programs, dir string) (string, error) {
	pause, err := os.ReadFile(filepath.Join(p.Made, "pause"))
	if err != nil {
		return "", err
	}
	return writeImage(filepath.Join(dir, "pause.tar"), file{"pause", 0o755, pause}, "65535:65535", "registry.k8s.io/pause:3.10.2")
}

// writeImage writes an archive of an image that is one program, and gives its path.
func writeImage(path string, program file, user string, tags ...string) (string, error) {
	layer := archive(program)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + program.name}, "User": user, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": tags, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, archive(file{"manifest.json", 0o644, manifest}, file{"config.json", 0o644, config}, file{"layer.tar", 0o644, layer}), 0o644)
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func archive(files ...file) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		// Writes to a buffer do not fail.
		_ = w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))})
		_, _ = w.Write(f.content)
	}
	_ = w.Close()
	return b.Bytes()
}
