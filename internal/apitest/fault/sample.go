package fault

import (
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"time"
)

// Sample are those of a scenario's disturbances that this run tries: three, others every
// day. KNARR_FAULTS is another number, or all.
func Sample[T any](scenario string, all []T) []T {
	sample, text := 3, os.Getenv("KNARR_FAULTS")
	if n, err := strconv.Atoi(text); err == nil {
		sample = n
	}
	if text == "all" || len(all) <= sample {
		return all
	}
	h := fnv.New32a()
	fmt.Fprint(h, scenario, time.Now().Unix()/86400)
	from := int(h.Sum32() % uint32(len(all)))
	var some []T
	for i := range sample {
		some = append(some, all[(from+i*len(all)/sample)%len(all)])
	}
	return some
}
