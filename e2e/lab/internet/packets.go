package internet

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"strings"
)

//go:embed packets.nft
var packetRules string

// countPackets loads the counting rules into the namespace of the calling thread.
func countPackets() error {
	command := exec.Command("nft", "-f", "-")
	command.Stdin = strings.NewReader(packetRules)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: load the counting rules: %w: %s", err, out)
	}
	return nil
}

// readPackets reads the counters from the namespace of the calling thread.
func readPackets() (map[string]int, error) {
	var stderr bytes.Buffer
	command := exec.Command("nft", "-j", "list", "table", "inet", "lab")
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("nft: read the counters: %w: %s", err, stderr.Bytes())
	}
	return parsePackets(out)
}

// parsePackets reads what "nft -j list table" prints (libnftables-json(5)).
func parsePackets(listing []byte) (map[string]int, error) {
	var table struct {
		Nftables []struct {
			Set *struct {
				Elem []struct {
					Elem struct {
						Val struct {
							// An address, a protocol, and for TCP and UDP a port.
							Concat []any
						}
						Counter struct{ Packets int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(listing, &table); err != nil {
		return nil, fmt.Errorf("nft: read the counters: %w", err)
	}
	packets := map[string]int{}
	for _, object := range table.Nftables {
		if object.Set == nil {
			continue
		}
		for _, e := range object.Set.Elem {
			var words []string
			for _, word := range e.Elem.Val.Concat {
				words = append(words, fmt.Sprint(word))
			}
			switch len(words) {
			case 2:
				packets[words[1]+" "+words[0]] += e.Elem.Counter.Packets
			case 3:
				packets[words[1]+" "+net.JoinHostPort(words[0], words[2])] += e.Elem.Counter.Packets
			}
		}
	}
	return packets, nil
}
