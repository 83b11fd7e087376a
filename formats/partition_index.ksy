meta:
  id: kafka_backup_partition_index
  title: Index file of a Kafka backup partition
  license: CC0-1.0
  endian: be
  encoding: UTF-8
doc: |
  `index_partition_<p>`: the partition's segments. What the types below can't say: start offsets strictly increase.
seq:
  - id: magic
    contents: [0x01]
  - id: segments
    type: segment
    repeat: eos
types:
  segment:
    seq:
      - id: len_name
        type: s4
        valid:
          min: 1
      - id: name
        type: str
        size: len_name
        doc: File name without `_records` or `_index`.
      - id: start_offset
        type: s8
        valid:
          min: 0
