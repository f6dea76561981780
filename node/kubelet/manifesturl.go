package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// manifestTime bounds one request for manifests.
const manifestTime = 10 * time.Second

// followManifestURL asks for the static pods of a URL from time to time. While it does
// not answer, or with nothing that can be read, they stay as they were.
func (k *Kubelet) followManifestURL(ctx context.Context) {
	url := k.cfg.Settings.StaticPodURL
	if url == "" {
		return
	}
	client := &http.Client{Timeout: manifestTime}
	var last []byte
	logged := ""
	for {
		body, files, err := k.readURL(ctx, client, url, last)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != logged:
			logged = err.Error()
			slog.Warn("Failed to read pods from URL", "err", err)
		case err == nil && logged != "":
			logged = ""
			slog.Info("Successfully read pods from URL")
		}
		if files != nil {
			last = body
			k.manifests.Store(&files)
			k.wakeStatic()
		}
		if !sleep(ctx, k.cfg.Settings.HTTPCheckFrequency.Duration) {
			return
		}
	}
}

// readURL reads the manifests of a URL; nil if they are those of the last body, or
// there is something wrong with them.
func (k *Kubelet) readURL(ctx context.Context, client *http.Client, url string, last []byte) (body []byte, files []manifestFile, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	for name, values := range k.cfg.Settings.StaticPodURLHeader {
		for _, v := range values {
			req.Header.Add(name, v)
		}
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, maxManifest+1))
	switch {
	case err != nil:
		return nil, nil, err
	case res.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("%v: %v", url, res.Status)
	case len(body) > maxManifest:
		return nil, nil, fmt.Errorf("%v: larger than %d bytes", url, maxManifest)
	case len(body) == 0:
		return nil, []manifestFile{}, fmt.Errorf("zero-length data received from %v", url)
	case bytes.Equal(body, last):
		return nil, nil, nil
	}
	files, err = decodeManifests(body, url, k.cfg.NodeName)
	if err != nil {
		return nil, nil, fmt.Errorf("%v: %w", url, err)
	}
	return body, files, nil
}

// maxRemotePods bounds the list of a URL.
const maxRemotePods = 1000

// decodeManifests makes static pods of a Pod or a list of them, each of which stands
// alone.
func decodeManifests(body []byte, url, node string) ([]manifestFile, error) {
	m, err := parseManifest(body)
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	switch m.Kind {
	case "Pod":
		p, err := m.pod()
		if err != nil {
			return nil, err
		}
		pod, err := asStatic(p, body, url, node, "http")
		return []manifestFile{{path: url, pod: pod, ignored: m.ignored, err: err}}, err
	case "PodList", "List":
		if err := m.decode(&list); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("couldn't parse as single or multiple pods: %q is neither Pod nor PodList", m.Kind)
	}
	if len(list.Items) > maxRemotePods {
		return nil, fmt.Errorf("more than %d pods", maxRemotePods)
	}
	files := []manifestFile{}
	var errs []error
	for i := range list.Items {
		p := &list.Items[i]
		p.Kind = "Pod"
		b, err := yaml.Marshal(p)
		if err != nil {
			return nil, err
		}
		f := manifestFile{path: fmt.Sprintf("%s#%d", url, i)}
		if i == 0 {
			f.ignored = m.ignored // of the whole list
		}
		if f.pod, f.err = asStatic(p, b, url, node, "http"); f.err != nil {
			errs = append(errs, f.err)
		}
		files = append(files, f)
	}
	if len(errs) > 0 && len(errs) == len(files) {
		return nil, errors.Join(errs...)
	}
	return files, nil
}
