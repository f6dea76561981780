package encryption

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are upstream's metrics of keys and plugins.
type counts struct {
	latency                            *prometheus.HistogramVec
	uses, faults, reloads              *prometheus.CounterVec
	lastUse, lastStatus, keys, reloadT *prometheus.GaugeVec
	config                             *prometheus.GaugeVec
	server                             string
}

func newCounts() *counts {
	const envelope, config = "apiserver_envelope_encryption_", "apiserver_encryption_config_controller_"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "[ALPHA] " + help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: "[ALPHA] " + help}, labels)
	}
	return &counts{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: envelope + "kms_operations_latency_seconds", Help: "[ALPHA] How long KMS plugins took to answer, by gRPC status.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20)}, []string{"provider_name", "method_name", "grpc_status_code"}),
		uses:       counter(envelope+"key_id_hash_total", "Values sealed and opened, by key.", "transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash"),
		lastUse:    gauge(envelope+"key_id_hash_last_timestamp_seconds", "When a key was last used.", "transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash"),
		lastStatus: gauge(envelope+"key_id_hash_status_last_timestamp_seconds", "When a plugin last named a key.", "provider_name", "key_id_hash", "apiserver_id_hash"),
		faults:     counter(envelope+"invalid_key_id_from_status_total", "Names of keys that no key may have.", "provider_name", "error"),
		keys:       gauge(envelope+"dek_source_cache_size", "Opened keys that are remembered.", "provider_name"),
		reloads:    counter(config+"automatic_reloads_total", "Takings over of a changed encryption configuration.", "status", "apiserver_id_hash"),
		reloadT:    gauge(config+"automatic_reload_last_timestamp_seconds", "When that last went well or badly.", "status", "apiserver_id_hash"),
		config:     gauge(config+"last_config_info", "The hash of the encryption configuration in use.", "apiserver_id_hash", "hash"),
		server:     hashOf(ServerID()),
	}
}

// ServerID is upstream's name of an API server.
func ServerID() string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(host))
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

func (c *counts) all() []prometheus.Collector {
	return []prometheus.Collector{c.latency, c.uses, c.faults, c.reloads, c.lastUse, c.lastStatus, c.keys, c.reloadT, c.config}
}

func (c *counts) recordCall(plugin, method, code string, took time.Duration) {
	c.latency.WithLabelValues(plugin, method, code).Observe(took.Seconds())
}

func (c *counts) recordUse(how, plugin, keyID string) {
	hash := hashOf(keyID)
	c.uses.WithLabelValues(how, plugin, hash, c.server).Inc()
	c.lastUse.WithLabelValues(how, plugin, hash, c.server).SetToCurrentTime()
}

func (c *counts) recordKeyID(plugin, keyID string) {
	c.lastStatus.WithLabelValues(plugin, hashOf(keyID), c.server).SetToCurrentTime()
}

func (c *counts) recordInvalidKeyID(plugin, code string) {
	c.faults.WithLabelValues(plugin, code).Inc()
}

func (c *counts) setCachedKeys(plugin string, n int) { c.keys.WithLabelValues(plugin).Set(float64(n)) }

func (c *counts) recordReload(err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	c.reloads.WithLabelValues(result, c.server).Inc()
	c.reloadT.WithLabelValues(result, c.server).SetToCurrentTime()
}

func (c *counts) setConfig(config []byte) {
	c.config.Reset()
	c.config.WithLabelValues(c.server, fmt.Sprintf("sha256:%x", sha256.Sum256(config))).Set(1)
}
