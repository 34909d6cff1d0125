"""What a tracer has recorded."""


def blocks(tracer):
    return {record.name: record for record in tracer.session().blocks}
